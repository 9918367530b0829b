"""What a job is expected to take on the disk; what was never read of keys of requests goes."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Jobs of before are expected to take nothing."""
    size = sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("jobs", size)
    op.drop_index("ix_idempotency_created", "idempotency")
    op.drop_column("idempotency", "created")
