"""CSV: quoted values that may have swallowed rows."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

import georesolve

HERE = {"lat": [50.0], "lon": [8.0]}


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
@pytest.mark.parametrize("swallowed", [2, 5])
def test_quotes_that_may_have_swallowed_rows_give_a_warning(tmp_path, separator, swallowed):
    rows = [["n", "lat", "lon", "place"], *([i, 50, 8, f"p{i}"] for i in range(9))]
    rows[3][3] = '"Aue'
    rows[3 + swallowed - 1][3] = 'Teiche"'
    path = tmp_path / "x.csv"
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    with pytest.warns(UserWarning, match="1 rows have a quoted value.*start in line 4\\. "):
        result = georesolve.nearest(path, HERE)
    assert result.num_rows == 9 - swallowed + 1


@given(st.lists(st.text('a,\n"', max_size=12), min_size=1, max_size=4))
def test_the_lines_are_those_of_rows_with_such_values(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([["lat", "lon", "text"], *([50, 8, text] for text in texts)])
    lines, line = [], 2
    for text in texts:
        if "\n" in text and text.count(",") >= 2:
            lines.append(line)
        line += 1 + text.count("\n")
    if not lines:
        assert georesolve.nearest(path, HERE).num_rows == len(texts)
        return
    shown = ", ".join(map(str, lines))
    with pytest.warns(UserWarning, match=f"{len(lines)} rows .* start in line {shown}\\. "):
        assert georesolve.nearest(path, HERE).num_rows == len(texts)
