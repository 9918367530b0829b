"""The notebook of the documentation runs as it stands, and is stored with what it shows.

`python -m tests.clients.test_notebook` stores it anew.
"""

import base64

import nbformat
from nbclient import NotebookClient

from tests.conftest import ROOT

PATH = ROOT / "docs" / "airports.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"


def run():
    """The notebook with what it shows now, and the states of its progress bars."""
    notebook = nbformat.read(PATH, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": PATH.parent}})
    client.execute()
    states = client.widget_state.values()
    bars = [state for state in states if state.get("_model_name") == "FloatProgressModel"]
    # What is stored is a result, and no run: no progress, no machine.
    notebook.metadata.pop("widgets")
    notebook.metadata.language_info = {"name": "python"}
    for cell in code_of(notebook):
        cell.metadata = {}
        cell.outputs = [one for one in cell.outputs if WIDGET not in one.get("data", {})]
    return notebook, bars


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown_by(notebook):
    """What each cell shows, by media type: its texts as they are, of pictures whether they are."""
    shown = []
    for cell in code_of(notebook):
        data = {kind: text for one in cell.outputs for kind, text in one["data"].items()}
        if "image/png" in data:
            data["image/png"] = base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
        shown.append(data)
    return shown


def test_the_notebook_shows_what_is_stored(monkeypatch):
    # Of a machine without a network nothing can be loaded: a proxy that is not there stands for it.
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    notebook, bars = run()
    assert [(bar["value"], bar["max"]) for bar in bars] == [(28_298, 28_298)]
    shown = shown_by(notebook)
    assert shown == shown_by(nbformat.read(PATH, as_version=4))
    _, counted, berlin, lonely, *maps = shown
    assert "beyond_max_distance" in counted["text/plain"]
    assert "Schonefeld" in berlin["text/plain"]
    assert "km" in lonely["text/plain"]
    assert [one["image/png"] for one in maps] == [True, True]


if __name__ == "__main__":
    nbformat.write(run()[0], PATH)
