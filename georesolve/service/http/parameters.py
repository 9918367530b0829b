"""What clients may say to an operation, in a query, a form or JSON: these names and no others."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, TypeVar

from fastapi import Body
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from starlette.requests import HTTPConnection

from georesolve.io.columns import EVERY
from georesolve.io.errors import meant
from georesolve.query import MatchOptions
from georesolve.service.errors import invalid_request, misplaced, step

_UNKNOWN_SHOWN = 10
LONGEST_TITLE = 200
"""Characters that a dataset or a job may be called."""
_BY = {"by", "observation_by", "reference_by"}
LISTS = _BY.union(one.name for one in fields(MatchOptions) if isinstance(one.default, tuple))
"""Options that may be given several times."""
_QUERY_LISTS = LISTS | {"processID", "status", "type"}
"""What a query may give several times: columns, and the lists of `store.listing.JobQuery`."""
Texts = Iterable[tuple[str, str]]
"""Names and texts, of a query or of the fields of a form, in their order."""


class Parameters(BaseModel):
    """What a client may say, and nothing else."""

    # An option that does not exist must not pass as if it had worked.
    model_config = ConfigDict(extra="forbid")

    # As properties: pydantic takes a tenth of a small request to make private attributes.
    @cached_property
    def place(self) -> str:
        """Where it stands in the body; set by what it is a member of."""
        return ""

    @cached_property
    def in_query(self) -> Collection[str]:
        """What stands in the query instead; set by `parameters_of`."""
        return ()

    @model_validator(mode="before")
    @classmethod
    def _name_what_is_allowed(cls, given: Any) -> Any:
        fields = cls.model_fields
        unknown = [name for name in given if name not in fields] if isinstance(given, dict) else []
        if unknown:
            missing = [
                InitErrorDetails(type="missing", loc=(name,), input=None)
                for name, field in fields.items()
                if field.is_required() and name not in given
            ]
            errors = [_unknown(name, list(fields)) for name in unknown[:_UNKNOWN_SHOWN]]
            raise ValidationError.from_exception_data(cls.__name__, missing + errors)
        return given

    def pointer(self, name: str) -> str:
        """The JSON pointer of a member in the request."""
        return f"{'/query' if name in self.in_query else self.place}/{step(name)}"


def _unknown(name: str, known: list[str]) -> InitErrorDetails:
    error = PydanticCustomError(
        "unknown_name",
        "there is no such name here{meant}; allowed are {known}",
        {"meant": meant(name, known), "known": ", ".join(known)},
    )
    return InitErrorDetails(type=error, loc=(name,), input=None)


def _shown(title: str) -> str:
    if not title.isprintable() or not title.strip():
        raise PydanticCustomError("title", "give characters that a screen shows")
    return title


Title = Annotated[str, Field(min_length=1, max_length=LONGEST_TITLE), AfterValidator(_shown)]
"""What a dataset or a job is called before people."""


P = TypeVar("P", bound=Parameters)


def with_fields(**added: Any) -> Callable[[type[P]], type[P]]:
    """Add fields to a model: each a type, and a default or a field of a dataclass."""

    def extended(model: type[P]) -> type[P]:
        name, module = model.__name__, model.__module__
        return create_model(name, __base__=model, __module__=module, __doc__=model.__doc__, **added)

    return extended


class NewName(Parameters):
    """What something is called from now on."""

    name: Title = Field(description="what lists show")


_EXAMPLE = {"a name": {"value": {"name": "airports and places, checked"}}}
Renaming = Annotated[NewName, Body(openapi_examples=_EXAMPLE)]


def parameters_of(
    model: type[P], query: Texts, form: Texts = (), given: Mapping[str, Any] | None = None
) -> P:
    """The model of a request whose options are texts; `given` are the files of the request.

    Of columns, a single text is a list with commas, or `*` for all; of several, each is a name that
    counts once.
    """
    in_query, given = _by_name(query), given or {}
    # Browsers send the fields that a user leaves empty, too: they are not given.
    in_form = _by_name((name, text) for name, text in form if text)

    for name in in_query.keys() & given.keys():
        raise misplaced(f"/query/{step(name)}", "the body brings it: leave it out of the query")
    for name, texts in in_form.items():
        other = in_query.get(name, texts)
        if other != texts:
            raise misplaced(
                f"/query/{step(name)}",
                f"the query says {_quoted(other)} and the form {_quoted(texts)}: send it once",
            )
        if len(texts) > 1 and name not in LISTS:
            raise misplaced(f"/{step(name)}", f"given {len(texts)} times: send it once")
    values = {name: _value(name, texts) for name, texts in {**in_query, **in_form}.items()}
    try:
        made = model.model_validate({**values, **given})
        made.in_query = in_query
        return made
    except ValidationError as error:
        found = error.errors(include_url=False)
        for one in found:
            if one["loc"] and one["loc"][0] in in_query:
                one["loc"] = ("query", *one["loc"])
        raise invalid_request(found) from None


def refuse_query(query: Texts) -> None:
    """Refuse a query beside a JSON body, which has all options."""
    for name, _ in query:
        where = "with a JSON body the options stand in it, beside the sets"
        raise misplaced(f"/query/{step(name)}", where)


def refuse_repeated(request: HTTPConnection) -> None:
    """Refuse a query that gives a parameter twice where one value counts."""
    if not request.scope["query_string"]:
        return
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in counts.items():
        if times > 1 and name not in _QUERY_LISTS:
            told = f"given {times} times, and one value counts: send it once"
            raise misplaced(f"/query/{step(name)}", told)


def _by_name(pairs: Texts) -> dict[str, list[str]]:
    by_name = defaultdict(list)
    for name, text in pairs:
        by_name[name].append(text)
    return dict(by_name)


def _value(name: str, texts: list[str]) -> Any:
    if name not in LISTS:
        return texts[0]
    if texts == [EVERY]:
        return EVERY
    return texts[0].split(",") if len(texts) == 1 else [*dict.fromkeys(texts)]


def _quoted(texts: list[str]) -> str:
    return ", ".join(repr(text[:80]) for text in texts)
