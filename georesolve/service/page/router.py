"""The page: its document at `/` for browsers, and below `/page` all that the document loads.

Nothing comes from elsewhere, and nothing is written into the document that a browser would run: its
policy (CSP) allows scripts and styles of the service alone. The page has no state but its address.
"""

import hashlib
import html
import mimetypes
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from georesolve.service import pools
from georesolve.service.errors import NotThere
from georesolve.service.http.answers import unchanged

router = APIRouter(include_in_schema=False)

_SAFETY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'self'; form-action 'none'; "
    "frame-src 'none'; object-src 'none'",
    "Referrer-Policy": "same-origin",
}
"""Besides what every answer of a front has: no frames of other sites, no guessed media types."""


@cache
def _static() -> tuple[str, dict[str, bytes]]:
    """The digest of all files of the page, and the files by name."""
    folder = Path(__file__).with_name("static")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    sums = "".join(hashlib.sha256(content).hexdigest() for content in contents.values())
    return hashlib.sha256(sums.encode()).hexdigest()[:16], contents


def page_response(request: Request) -> Response:
    """The document; its addresses are relative to the path below which a proxy shows the service.

    It names the files by the digest of their content, so a browser keeps them for good.
    """
    digest, contents = _static()
    here = html.escape(f"{request.scope.get('root_path', '')}/", quote=True)
    text = contents["page.html"].decode().replace("{here}", here).replace("{digest}", digest)
    headers = {**_SAFETY, "Cache-Control": "private, no-cache", "Vary": "Accept"}
    return Response(text, media_type="text/html", headers=headers)


@router.get("/page/{digest}/{name:path}")
@pools.disk.handler
def show_file(digest: str, name: str, request: Request) -> Response:
    """A file that the page loads."""
    current, contents = _static()
    if digest != current or name not in contents:
        raise NotThere(f"{name[:80]!r} is no file of this version's page: load the page again")
    tag = f'"{hashlib.sha256(contents[name]).hexdigest()}"'
    headers = {**_SAFETY, "Cache-Control": "private, max-age=31536000, immutable", "ETag": tag}
    if (known := unchanged(request, headers)) is not None:
        return known
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(contents[name], media_type=media_type, headers=headers)
