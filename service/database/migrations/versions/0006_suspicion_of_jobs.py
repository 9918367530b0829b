"""How far a job is suspected of ending the service that runs it."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Jobs of before are under no suspicion."""
    op.add_column("jobs", sa.Column("suspicion", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("oom_kills", sa.BigInteger))
