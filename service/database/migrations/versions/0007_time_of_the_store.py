"""The time by which things expire, noted now and then."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """The clock is believed until it is noted for the first time."""
    op.add_column("store", sa.Column("time", sa.String))
