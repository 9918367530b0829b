"""Uploads that go on after a break."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """There are none yet."""
    op.create_table(
        "uploads",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("created", sa.String, nullable=False),
        sa.Column("expires", sa.String, nullable=False, index=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("about", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )
    op.create_index("bytes_of_uploads", "uploads", ["owner", "size_bytes"])
