"""What clients may say to an operation: the names that exist, and none besides."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from georesolve.intake.columns import LONGEST_NAME
from georesolve.intake.errors import meant

_UNKNOWN_SHOWN = 10
ColumnName = Annotated[str, Field(max_length=LONGEST_NAME)]


class Parameters(BaseModel):
    """What a client may say, and nothing else."""

    # An option that does not exist must not pass as if it had worked.
    model_config = ConfigDict(extra="forbid")

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


def _unknown(name: str, known: list[str]) -> InitErrorDetails:
    error = PydanticCustomError(
        "unknown_name",
        "there is no such name here{meant}; allowed are {known}",
        {"meant": meant(name, known), "known": ", ".join(known)},
    )
    return InitErrorDetails(type=error, loc=(name,), input=None)
