"""The tables of the store, and their version: that of the newest migration in `migrations/`."""

import sqlalchemy as sa

VERSION = "0003"
metadata = sa.MetaData()


def _index_once(name: str, where: sa.ColumnElement[bool], *columns: sa.Column[str]) -> None:
    """Have values only once among the rows where something holds."""
    sa.Index(name, *columns, unique=True, sqlite_where=where, postgresql_where=where)


# Times are RFC 3339 texts in UTC with milliseconds, so they sort as they stand. `owner` is the id
# of the key that a row was made with; empty where the service asks for none.

# It has one row: whose files the data folder holds, when its runner swept last, until when it does
# not sweep because the clock jumped, and the lease of the runner: who holds it, how often it was
# renewed, and how the cluster and the metrics of its holder are, see `service.store.lease`.
store = sa.Table(
    "store",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("swept", sa.String),
    sa.Column("waits_until", sa.String),
    sa.Column("holder", sa.String, nullable=False, server_default=""),
    sa.Column("beat", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("cluster", sa.JSON, nullable=False, server_default="{}"),
    sa.Column("metrics", sa.String, nullable=False, server_default=""),
)

# What is kept, and where its bytes lie: sets at `datasets/<id>.parquet`, the result of a job at
# `jobs/<id of the job>/`. The row is there before the bytes, and goes after them.
kept = sa.Table(
    "kept",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    # `dataset`: registered; `input`: a set that came with a request; `result`.
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("owner", sa.String, nullable=False, server_default=""),
    # `incoming`: it is being made, or waits for its job to be accepted, or its job has ended so
    # lately that a worker may still write; `whole`; `going`: its bytes are being removed.
    sa.Column("state", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
    # What a set is called before people; it stands for nothing, as `names` do.
    sa.Column("name", sa.String, nullable=False, server_default=""),
    sa.Column("created", sa.String, nullable=False),
    # From when on the sweeper sees to it; null while its job is live, and for ever.
    sa.Column("expires", sa.String, index=True),
    # The job that an input or a result is of.
    sa.Column("needed_by", sa.String, index=True),
    # Of sets alone.
    sa.Column("sha256", sa.String),
    sa.Column("dataset", sa.JSON),
    sa.Column("seconds", sa.JSON),
)
sa.Index("kept_of_owner", kept.c.owner, kept.c.created, kept.c.id)
# What an owner keeps is added up without the rows themselves.
sa.Index("bytes_of_owner", kept.c.owner, kept.c.size_bytes)
is_registered = (kept.c.kind == "dataset") & (kept.c.state == "whole")
# An owner registers content once, in however many requests at the same time.
_index_once("registered_content", is_registered, kept.c.owner, kept.c.sha256)

# A name stands for the dataset of its newest version: the one that is not replaced.
names = sa.Table(
    "names",
    metadata,
    sa.Column("owner", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("dataset", sa.String, nullable=False, index=True),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("replaced", sa.String),
)
# Whatever replaces it at the same time, a name has one newest version.
_index_once("newest_version", names.c.replaced.is_(None), names.c.owner, names.c.name)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("owner", sa.String, nullable=False, server_default=""),
    sa.Column("name", sa.String, nullable=False, server_default=""),
    sa.Column("process", sa.String, nullable=False, server_default="nearest"),
    sa.Column("status", sa.String, nullable=False, index=True),
    # The id of the request that made it, for the log.
    sa.Column("request", sa.String, nullable=False, server_default=""),
    # Its Idempotency-Key, and what tells that request from others; none of a job that is dismissed.
    sa.Column("key", sa.String),
    sa.Column("fingerprint", sa.String),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("started", sa.String),
    sa.Column("finished", sa.String, index=True),
    sa.Column("updated", sa.String, nullable=False),
    # Until when its result is given to clients.
    sa.Column("expires", sa.String),
    sa.Column("observations", sa.String, nullable=False),
    sa.Column("references", sa.String, nullable=False),
    sa.Column("options", sa.JSON, nullable=False),
    sa.Column("delivery", sa.JSON, nullable=False, server_default="{}"),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("rows_done", sa.BigInteger, nullable=False),
    sa.Column("rows_a_second", sa.Float),
    # Whether a runner has it in hand, and how many died with it since it last got on.
    sa.Column("held", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("deaths", sa.Integer, nullable=False, server_default="0"),
    # True once the job had a result, also after that was removed.
    sa.Column("succeeded", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("message", sa.String, nullable=False),
    sa.Column("problem", sa.JSON),
    sa.Column("report", sa.JSON),
)
sa.Index("jobs_of_owner", jobs.c.owner, jobs.c.created, jobs.c.id)
sa.Index("key_of_request", jobs.c.owner, jobs.c.key, unique=True)

# A key itself is known to its holder alone: here stands its beginning, to name it by, and its hash.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("prefix", sa.String, nullable=False, unique=True),
    sa.Column("sha256", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("created", sa.String, nullable=False),
    sa.Column("revoked", sa.String),
    sa.Column("last_used", sa.String),
    sa.Column("role", sa.String, nullable=False, server_default="user"),
    sa.Column("expires", sa.String),
)
