"""The notebook of the documentation runs as it stands, and shows what it says."""

import base64

import nbformat
from nbclient import NotebookClient

from tests.conftest import ROOT

PATH = ROOT / "docs" / "airports.ipynb"


def shown_by(cell):
    """What a cell shows, by media type."""
    shown = {}
    for output in cell["outputs"]:
        shown.update(output.get("data", {}))
    return shown


def test_the_notebook_runs(monkeypatch):
    # Of a machine without a network nothing can be loaded: a proxy that is not there stands for it.
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    notebook = nbformat.read(PATH, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell["outputs"] for cell in cells), "clear its outputs before it is committed"
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": PATH.parent}})
    client.execute()
    _, counted, berlin, lonely, world, iceland = map(shown_by, cells)
    assert "beyond_max_distance" in counted["text/plain"]
    assert "Schonefeld" in berlin["text/plain"]
    assert "km" in lonely["text/plain"]
    for figure in (world, iceland):
        assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG")
    states = client.widget_state.values()
    bars = [state for state in states if state.get("_model_name") == "FloatProgressModel"]
    assert [(bar["value"], bar["max"]) for bar in bars] == [(28_298, 28_298)]
