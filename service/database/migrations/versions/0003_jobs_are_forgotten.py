"""An index for finding jobs that ended long ago."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """They are looked for again and again."""
    op.create_index("ix_jobs_finished", "jobs", ["finished"])
