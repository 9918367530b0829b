"""What datasets and results take on the disk, so that it can be added up for an owner."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Results tell their size in their reports; datasets of before count when they are used."""
    size = sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("datasets", size)
    op.create_index("bytes_of_datasets", "datasets", ["owner", "size_bytes"])
    op.create_index("bytes_of_jobs", "jobs", ["owner", "status", "expires", "size_bytes"])
    jobs = sa.table(
        "jobs", sa.column("status"), sa.column("report", sa.JSON), sa.column("size_bytes")
    )
    told = sa.cast(jobs.c.report["size_bytes"].as_string(), sa.BigInteger)
    has_ended = jobs.c.status.in_(["successful", "failed", "dismissed"])
    op.execute(jobs.update().where(has_ended).values(size_bytes=sa.func.coalesce(told, 0)))
