"""Options that come as texts: in the query of a request, and in the fields of its form."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import HTTPConnection

from georesolve.intake.columns import EVERY
from georesolve.service.errors import InvalidRequest, Problem, invalid_request, step
from georesolve.service.parameters import Parameters

P = TypeVar("P", bound=Parameters)

LISTS = frozenset({"columns", "observation_columns"})
"""Options that may be given several times."""


def options_of(
    model: type[P], request: HTTPConnection, fields: Iterable[tuple[str, str]] = ()
) -> tuple[P, Callable[[str], str]]:
    """The options of a request, and what tells the JSON pointer of one.

    Of columns to carry, a single text is a list with commas, or `*` for all; of several, each is a
    name as it stands: so a name with a comma is given twice.

    Parameters
    ----------
    fields
        Names and texts of the fields of its form; empty ones are not given.

    Raises
    ------
    InvalidRequest
        When there is no such option, its value is not allowed, it is given twice, or the query and
        the form say different things.
    """
    in_query = _by_name(request.query_params.multi_items())
    # Browsers send the fields that a user leaves empty, too.
    in_form = _by_name((name, text) for name, text in fields if text)

    def pointer(name: str) -> str:
        return f"/query/{step(name)}" if name in in_query else f"/{step(name)}"

    for name, texts in in_form.items():
        other = in_query.get(name, texts)
        if other != texts:
            raise _refusal(
                pointer(name),
                f"the query says {_quoted(other)} and the form {_quoted(texts)}: send it once",
            )
        if len(texts) > 1 and name not in LISTS:
            raise _refusal(f"/{step(name)}", f"given {len(texts)} times: send it once")
    values = {name: _value(name, texts) for name, texts in {**in_query, **in_form}.items()}
    try:
        return model.model_validate(values), pointer
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        for one in found:
            if one["loc"] and one["loc"][0] in in_query:
                one["loc"] = ("query", *one["loc"])
        raise invalid_request(found) from None


def refuse_query(request: HTTPConnection) -> None:
    """Refuse a query beside a JSON body, which has all options; raises InvalidRequest."""
    for name in request.query_params:
        raise _refusal(
            f"/query/{step(name)}", "with a JSON body the options stand in it, beside the sets"
        )


def _by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    by_name = defaultdict(list)
    for name, text in pairs:
        by_name[name].append(text)
    return dict(by_name)


def _value(name: str, texts: list[str]) -> Any:
    if name not in LISTS:
        return texts[0]
    if texts == [EVERY]:
        return EVERY
    return texts[0].split(",") if len(texts) == 1 else texts


def _quoted(texts: list[str]) -> str:
    return ", ".join(repr(text[:80]) for text in texts)


def _refusal(pointer: str, detail: str) -> Problem:
    return InvalidRequest(f"{pointer[:80]}: {detail}", [{"pointer": pointer, "detail": detail}])
