"""One runner at a time holds the lease; the jobs that it runs know the requests that made them."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Nobody holds the lease yet."""
    op.add_column("store", sa.Column("holder", sa.String, nullable=False, server_default=""))
    op.add_column("store", sa.Column("beat", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("store", sa.Column("cluster", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("store", sa.Column("metrics", sa.String, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("request", sa.String, nullable=False, server_default=""))
