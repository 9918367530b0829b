"""The pages as a site: each link leads somewhere, the search knows each page, no other host."""

import json
import re

from tests.conftest import ROOT
from tests.deploy.tools import check


def test_the_site_is_whole(tmp_path):
    # Strict: a link or an anchor that leads nowhere, or a page without a place, ends it.
    check("mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path)
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    found = {one["location"].partition("#")[0] for one in index["docs"]}
    pages = {str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    assert {f"{page.removesuffix('README')}".rstrip("/") + "/" for page in pages} <= found
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r'(?:src|<link [^>]*href)="([^"]*)"', page.read_text())
        assert [one for one in loaded if "//" in one] == []
