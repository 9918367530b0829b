"""What a key may do."""

from typing import Literal, get_args

Role = Literal["user", "admin", "metrics"]
"""`user`: all that is its own; `admin`: what all keys make, too; `metrics`: `/metrics` alone."""
ROLES: tuple[Role, ...] = get_args(Role)
