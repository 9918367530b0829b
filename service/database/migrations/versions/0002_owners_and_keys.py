"""Owners and times of expiry; the process of a job; API keys; keys of repeated requests."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """What is there belongs to the service without keys, and expires never."""
    for table in ("datasets", "jobs"):
        owner = sa.Column("owner", sa.String, nullable=False, server_default="")
        op.add_column(table, owner)
        op.add_column(table, sa.Column("expires", sa.String))
        op.create_index(f"ix_{table}_expires", table, ["expires"])
        op.create_index(f"{table}_of_owner", table, ["owner", "created", "id"])
    process = sa.Column("process", sa.String, nullable=False, server_default="nearest")
    op.add_column("jobs", process)
    op.add_column("jobs", sa.Column("delivery", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("jobs", sa.Column("rows_a_second", sa.Float))
    op.drop_index("ix_jobs_created", "jobs")
    op.drop_index("registered_content", "datasets")
    op.create_index(
        "registered_content",
        "datasets",
        ["owner", "sha256"],
        unique=True,
        sqlite_where=sa.text("registered"),
        postgresql_where=sa.text("registered"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("prefix", sa.String, nullable=False, unique=True),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("created", sa.String, nullable=False),
        sa.Column("revoked", sa.String),
        sa.Column("last_used", sa.String),
    )
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("fingerprint", sa.String, nullable=False),
        sa.Column("job", sa.String, nullable=False),
        sa.Column("created", sa.String, nullable=False),
    )
    op.create_index("ix_idempotency_created", "idempotency", ["created"])
