"""Datasets and jobs. Data folders of before there were migrations have these tables already."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make what is not there."""
    op.create_table(
        "datasets",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("created", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("registered", sa.Boolean, nullable=False),
        sa.Column("dataset", sa.JSON, nullable=False),
        sa.Column("seconds", sa.JSON, nullable=False),
        if_not_exists=True,
    )
    op.create_index("ix_datasets_sha256", "datasets", ["sha256"], if_not_exists=True)
    op.create_index(
        "registered_content",
        "datasets",
        ["sha256"],
        unique=True,
        sqlite_where=sa.text("registered"),
        postgresql_where=sa.text("registered"),
        if_not_exists=True,
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("created", sa.String, nullable=False),
        sa.Column("started", sa.String),
        sa.Column("finished", sa.String),
        sa.Column("updated", sa.String, nullable=False),
        sa.Column("observations", sa.String, nullable=False),
        sa.Column("references", sa.String, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column("rows_done", sa.BigInteger, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("problem", sa.JSON),
        sa.Column("report", sa.JSON),
        if_not_exists=True,
    )
    op.create_index("ix_jobs_status", "jobs", ["status"], if_not_exists=True)
    op.create_index("ix_jobs_created", "jobs", ["created"], if_not_exists=True)
