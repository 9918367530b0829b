"""Answers that tell of problems, and what makes every error that is foreseen such an answer."""

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy import exc
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Match

from georesolve.io.errors import Refused
from georesolve.io.storage import StoreFailed
from georesolve.service import errors

logger = logging.getLogger(__name__)

_STORE_IS_AWAY = (exc.InterfaceError, exc.OperationalError, exc.TimeoutError)
"""What SQLAlchemy raises for a database that is not reached, breaks off or stays locked."""


def install_error_handlers(app: FastAPI) -> None:
    """Make every error that is foreseen a problem; `Entrance` does so with the others."""

    @app.exception_handler(Refused)
    async def _problem_handler(request: Request, error: Refused) -> JSONResponse:
        return problem_response(errors.problem_of(error), request)

    @app.exception_handler(RequestValidationError)
    async def _validation_handler(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem_response(errors.invalid_request(error.errors()), request)

    @app.exception_handler(ClientDisconnect)
    async def _disconnect_handler(request: Request, error: ClientDisconnect) -> Response:
        # Nobody hears it; 499 is what proxies write into their logs for this.
        return Response(status_code=499)

    @app.exception_handler(OSError)
    @app.exception_handler(exc.SQLAlchemyError)
    async def _storage_handler(request: Request, error: Exception) -> JSONResponse:
        if errors.is_disk_full(error):
            logger.error("the disk is full: %s", error)
            return problem_response(errors.disk_full(), request)
        if isinstance(error, _STORE_IS_AWAY) or getattr(error, "connection_invalidated", False):
            logger.error("the store failed: %s", error)
            return problem_response(errors.store_away(), request)
        if isinstance(error, StoreFailed):
            logger.error("the object store failed: %s", error)
            away = errors.NotReady(
                "the object store of the service does not answer, or refuses; its log says why: "
                "try again",
                headers={"Retry-After": "5"},
            )
            return problem_response(away, request)
        raise error

    @app.exception_handler(HTTPException)
    async def _http_handler(request: Request, error: HTTPException) -> JSONResponse:
        path, detail, headers = request.url.path, str(error.detail), dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # Starlette names the methods of the first route that has the path, not of all.
            taken = _allowed(request)
            headers["Allow"] = ", ".join(taken)
            detail = f"{path} takes {' or '.join(taken)}, and {request.method} was sent"
        elif error.status_code == HTTPStatus.NOT_FOUND:
            docs = f"{request.scope.get('root_path', '')}/docs"
            detail = f"there is nothing at {path}: {docs} lists what there is"
        problem = errors.Problem(detail, headers=headers)
        problem.status = error.status_code
        problem.title = HTTPStatus(error.status_code).phrase
        problem.type = errors.OWN_TYPES + problem.title.lower().replace(" ", "-")
        return problem_response(problem, request)


def _allowed(request: Request) -> list[str]:
    at_path = [
        one for one in request.app.router.routes if one.matches(request.scope)[0] != Match.NONE
    ]
    known = {method for one in at_path for method in one.methods}
    taken = [one for one in ("GET", "POST", "PUT", "PATCH", "DELETE") if one in known]
    return taken + ["HEAD"] * ("GET" in taken)


def problem_response(problem: errors.Problem, connection: HTTPConnection) -> JSONResponse:
    """The answer that tells of a problem with a request."""
    document = problem.document(connection.url.path)
    return JSONResponse(document, problem.status, problem.headers, errors.PROBLEM_JSON)
