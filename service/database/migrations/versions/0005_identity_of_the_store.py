"""The id of the store, which its data folder holds, too."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Every database is a store of its own from now on."""
    table = op.create_table("store", sa.Column("id", sa.String, primary_key=True))
    op.bulk_insert(table, [{"id": secrets.token_hex(16)}])
