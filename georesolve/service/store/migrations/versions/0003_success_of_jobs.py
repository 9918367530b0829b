"""Jobs have a column that says whether they came to a result."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_REMOVED = "removed after its success"
"""The message by which version 0002 knew a job that was dismissed when it had its result."""


def upgrade() -> None:
    """Add the column, and fill it from statuses and messages."""
    new = sa.Column("succeeded", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("jobs", new)
    jobs = sa.table("jobs", *map(sa.column, ("status", "message", "succeeded")))
    had_result = (jobs.c.status == "successful") | (jobs.c.message == _REMOVED)
    op.execute(jobs.update().where(had_result).values(succeeded=sa.true()))
