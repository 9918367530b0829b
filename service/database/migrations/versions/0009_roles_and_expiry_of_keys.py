"""What a key may do, and until when."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Keys of before may do what they could, for ever."""
    op.add_column("keys", sa.Column("role", sa.String, nullable=False, server_default="user"))
    op.add_column("keys", sa.Column("expires", sa.String))
