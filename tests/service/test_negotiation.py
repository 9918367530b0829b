"""The header Accept: what RFC 9110 says that it means."""

import pytest
from starlette.datastructures import Headers

from georesolve.service.errors import NotAcceptable
from georesolve.service.http.answers import wanted_format

ARROW = "application/vnd.apache.arrow.stream"


@pytest.mark.parametrize(
    ("accept", "suffix"),
    [
        (None, "parquet"),
        ("", "parquet"),
        ("*/*", "parquet"),
        ("application/*", "parquet"),
        ("text/*", "csv"),
        ("TEXT/CSV", "csv"),
        ("application/json", "json"),
        ("application/geo+json", "geojson"),
        ("application/geo+json;q=0.4, application/json;q=0.3", "geojson"),
        (ARROW, "arrows"),
        ("text/csv;q=0.5, application/json;q=0.9", "json"),
        ("text/csv;q=0.5,application/json;q=0.50", "csv"),
        ("application/json, text/csv", "csv"),
        ("text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8", "parquet"),
        # The most specific range counts, not the first and not the highest.
        ("*/*, application/vnd.apache.parquet;q=0", "arrows"),
        ("application/vnd.apache.parquet;q=0.1, application/*;q=0.2, text/csv;q=0.15", "arrows"),
        ("application/*;q=0, text/*;q=0.001", "csv"),
        ("text/csv;q=0.1, text/csv;header=present;q=0.9, application/json;q=0.5", "csv"),
        ('text/csv; charset="UTF-8"; header=present', "csv"),
        # What is no range is passed over.
        ("text/csv;q=2, nonsense, ;, application/json;q=0.1", "json"),
        ("application/json;q=0.1, text/csv;q=nan", "json"),
    ],
)
def test_the_best_format_is_chosen(accept, suffix):
    headers = Headers({} if accept is None else {"accept": accept})
    assert wanted_format(headers).suffix == suffix


@pytest.mark.parametrize(
    ("accept", "geometry"),
    [
        ("application/geo+json", "point"),
        ("application/geo+json;geometry=point", "point"),
        ('application/geo+json; charset=utf-8; geometry="line"', "line"),
        ("application/geo+json;q=0.1, application/geo+json;geometry=line", "line"),
    ],
)
def test_the_geometry_is_a_parameter(accept, geometry):
    assert wanted_format(Headers({"accept": accept})).geometry == geometry


def test_several_headers_are_one():
    raw = [(b"accept", b"text/csv;q=0.5"), (b"accept", b"application/json")]
    assert wanted_format(Headers(raw=raw)).suffix == "json"


@pytest.mark.parametrize(
    "accept",
    [
        "text/html",
        "*/*;q=0",
        "text/csv;header=absent",
        "text/csv;charset=utf-16",
        "*/json",
        "json",
        "application/geo+json;geometry=polygon",
    ],
)
def test_a_format_that_there_is_not(accept):
    with pytest.raises(
        NotAcceptable, match=r"parquet, .*arrow\.stream, text/csv, .*json, .*geo\+json"
    ):
        wanted_format(Headers({"accept": accept}))
