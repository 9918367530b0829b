"""Datasets and jobs have names."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add their columns, which some databases of version 0001 have."""
    inspector = sa.inspect(op.get_bind())
    for table in ("kept", "jobs"):
        if "name" not in {column["name"] for column in inspector.get_columns(table)}:
            op.add_column(table, sa.Column("name", sa.String, nullable=False, server_default=""))
