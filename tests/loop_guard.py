"""Tells in the log of a service what its event loop waited for while it answered requests.

Whatever may take long runs in a thread: SQL, files, other servers. This looks at what is done, and
not at how long it took, so it finds the same on a fast disk and on a silent one.
"""

import asyncio
import sys
from contextvars import ContextVar

import sqlalchemy as sa

from georesolve.io import storage
from georesolve.service import front

MARK = "the event loop waited for"
_EVENTS = frozenset(
    {
        *("open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir"),
        *("shutil.rmtree", "socket.connect", "socket.getaddrinfo", "sqlite3.connect"),
        *("subprocess.Popen", "time.sleep"),
    }
)
_LOADING = "<frozen importlib"
_answers = ContextVar("answers", default=False)


def _look(what):
    """Tell of this if it is done by the thread of the event loop, on behalf of a request."""
    if not _answers.get() or asyncio._get_running_loop() is None:
        return
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    # What is loaded lazily is loaded once.
    if any(file.startswith(_LOADING) for file, _ in frames):
        return
    own = [f"{file}:{line}" for file, line in frames if "/georesolve/" in file]
    if own:
        sys.stderr.write(f"{MARK} {what}: {' < '.join(own[:4])}\n")
        sys.stderr.flush()


class _Answering:
    def __init__(self, app):
        self._app = app

    async def __call__(self, scope, receive, send):
        _answers.set(scope["type"] == "http")
        await self._app(scope, receive, send)


def install():
    """Look at the fronts that this process starts from now on."""
    create_app, object_store = front.create_app, storage.object_store

    def guarded_app(*arguments):
        app = create_app(*arguments)
        app.add_middleware(_Answering)
        return app

    def guarded_store(*root):
        _look("an object store")
        return object_store(*root)

    def audit(event, arguments):
        # FastAPI looks into the source of a handler, once.
        if event in _EVENTS and not str(arguments[0]).endswith(".py"):
            _look(f"{event} {arguments[:1]}")

    front.create_app = guarded_app
    storage.object_store = guarded_store
    sa.event.listen(
        sa.Engine, "before_cursor_execute", lambda *given: _look(f"SQL {given[2][:60]!r}")
    )
    sys.addaudithook(audit)
