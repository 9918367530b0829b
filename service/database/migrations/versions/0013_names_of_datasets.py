"""Names of datasets, and their versions."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0009"


def upgrade() -> None:
    """No dataset of before has a name."""
    op.create_table(
        "names",
        sa.Column("owner", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("dataset", sa.String, nullable=False, index=True),
        sa.Column("created", sa.String, nullable=False),
        sa.Column("replaced", sa.String),
    )
    is_newest = sa.text("replaced IS NULL")
    op.create_index(
        "newest_version",
        "names",
        ["owner", "name"],
        unique=True,
        sqlite_where=is_newest,
        postgresql_where=is_newest,
    )
