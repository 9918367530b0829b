"""The tables as the first release has them: a new database gets them from `schema.py` at once."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: no database is older."""
