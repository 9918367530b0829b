"""The code of `docs/python-client.md`, run as it stands, in a folder with the files it names."""

import re
import shutil

import pyarrow.parquet as pq

from tests.conftest import ROOT, SAMPLES

PAGE = (ROOT / "docs" / "python-client.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_of_the_page_runs(service, tmp_path, monkeypatch, capsys):
    shutil.copy(SAMPLES / "airports-1000.csv", tmp_path / "airports.csv")
    shutil.copy(SAMPLES / "places.parquet", tmp_path / "places.parquet")
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in CODE:
        # A service without keys takes any.
        code = code.replace("http://localhost:8000", str(service.base_url))
        exec(compile(code, "docs/python-client.md", "exec"), names)
    names["client"].close()
    assert len(names["matches"]) == len(names["one"]) == len(names["frame"]) == 1000
    assert len(names["three"]) == 3000
    assert names["airports"]["nearest place"].notna().any()
    assert names["table"].equals(pq.read_table(tmp_path / "matches.parquet"))
    assert names["points"].geometry.notna().all()
    told = capsys.readouterr().out
    assert "list is no point set" in told
    assert "400 The input is not valid" in told
