"""What OpenAPI says of answers."""

from typing import Any

from service.errors import PROBLEM_JSON, NoSuchJob

_TEXT = {"type": "string"}
PROBLEM_ANSWER: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "what is wrong, as RFC 9457 has it",
        "content": {
            PROBLEM_JSON: {
                "schema": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail"],
                    "properties": {
                        **dict.fromkeys(("type", "title", "detail", "instance"), _TEXT),
                        "status": {"type": "integer"},
                        "errors": {"type": "array", "items": {"type": "object"}},
                    },
                },
                "example": NoSuchJob("there is no job 'x'").document("/jobs/x"),
            }
        },
    }
}
"""What OpenAPI says of every answer that is no success."""
