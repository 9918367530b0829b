"""Which pages of other sites a browser lets use the service, and what it shows them (CORS)."""

from typing import Any

_SHOWN = (
    *("Accept-Ranges", "Allow", "Content-Disposition", "Content-Location", "Content-Range"),
    *("ETag", "Link", "Location", "Preference-Applied", "Repr-Digest", "Retry-After"),
    *("Server-Timing", "Tus-Extension", "Tus-Max-Size", "Tus-Resumable", "Tus-Version"),
    *("Upload-Expires", "Upload-Length", "Upload-Metadata", "Upload-Offset"),
    *("WWW-Authenticate", "X-Request-ID"),
)


def sharing_with(origins: tuple[str, ...]) -> dict[str, Any]:
    """What Starlette's `CORSMiddleware` is told for pages of some origins.

    No cookies: a key stands in a header, which the page itself sends.
    """
    return {
        "allow_origins": origins,
        "allow_methods": ["*"],
        "allow_headers": ["*"],
        "expose_headers": _SHOWN,
        # A page of the internet that was allowed may ask a service on the user's own machine.
        "allow_private_network": True,
    }
