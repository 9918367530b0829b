"""The log: lines of text or of JSON, which carry what they are about: a job, a request."""

import contextlib
import logging
import logging.config
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal

from pythonjsonlogger.core import RESERVED_ATTRS

LogFormat = Literal["text", "json"]

_FORMATTERS: dict[LogFormat, dict[str, Any]] = {
    "text": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
    "json": {
        "()": "pythonjsonlogger.json.JsonFormatter",
        "fmt": ["levelname", "name", "message"],
        "rename_fields": {"levelname": "level", "name": "logger"},
        "timestamp": "time",
        # uvicorn says everything twice, once in colour.
        "reserved_attrs": [*RESERVED_ATTRS, "color_message"],
    },
}
# distributed gives each of these a handler of its own when it is imported.
_LEVELS = {
    "distributed": "WARNING",
    "distributed.client": "WARNING",
    "distributed.gc": "WARNING",
    "tornado": "WARNING",
    "tornado.application": "ERROR",
    "bokeh": "ERROR",
    "alembic.runtime.plugins": "WARNING",
    "httpx": "WARNING",
    "numba.cuda.cudadrv.driver": "WARNING",
}

_about: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039


@contextlib.contextmanager
def about(**fields: str) -> Iterator[None]:
    """Let the lines that are logged within carry fields: ``about(job=id)``."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def subject(name: str) -> str:
    """What the lines that are logged now carry in a field; empty for nothing."""
    return _about.get().get(name, "")


def configure_log(format: LogFormat) -> None:
    """Send the log of this process to standard error, a line an event."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"about": {"()": lambda: _add_fields}, "told": {"()": lambda: _is_news}},
            "formatters": {"line": _FORMATTERS[format]},
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": "line",
                    "filters": ["about", "told"],
                }
            },
            "root": {"level": "INFO", "handlers": ["stderr"]},
            "loggers": {
                name: {"level": level, "handlers": [], "propagate": True}
                for name, level in _LEVELS.items()
            },
        }
    )
    logging.captureWarnings(True)
    # No format names them, nor the line of code, and each is looked up for every line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    vars(logging)["_srcfile"] = None


def _add_fields(record: logging.LogRecord) -> bool:
    for name, value in _about.get().items():
        if not hasattr(record, name):
            setattr(record, name, value)
    return True


def _is_news(record: logging.LogRecord) -> bool:
    # A heartbeat is on its way when the scheduler closes: the worker tells of that by itself.
    return not (
        record.name == "distributed.worker"
        and record.exc_info
        and type(record.exc_info[1]).__name__ == "CommClosedError"
        and "heartbeat" in record.getMessage()
    )
