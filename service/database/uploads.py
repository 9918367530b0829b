"""Uploads in the database: how large each will be, what its client said of it, when it expires."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import sqlalchemy as sa

from georesolve.service.clock import ExpiryClock
from georesolve.service.database.queries import Queries
from georesolve.service.database.reserve import Reserve
from georesolve.service.database.schema import uploads as _uploads

Admission = Callable[[sa.Connection], None]


@dataclass(frozen=True)
class UploadRow:
    """An upload, whose bytes lie in a file.

    Attributes
    ----------
    size_bytes
        Of the whole.
    about
        The `Upload-Metadata` of its client.
    digest
        The `Repr-Digest` that its client gave for the whole; empty without one.
    """

    id: str
    owner: str
    created: str
    expires: str
    size_bytes: int
    about: str
    digest: str


class Uploads(Queries):
    """The uploads of one owner, or of all for None. Every method is one transaction.

    Parameters
    ----------
    accepting
        Opens a transaction that enters something, if it is admitted.
    """

    def __init__(
        self,
        engine: sa.Engine,
        owner: str | None,
        expiry: ExpiryClock,
        reserve: Reserve,
        accepting: Callable[[Admission], AbstractContextManager[sa.Connection]],
    ) -> None:
        super().__init__(engine)
        self._own = sa.true() if owner is None else _uploads.c.owner == owner
        self._expiry = expiry
        self._reserve = reserve
        self._accepting = accepting

    def add(self, row: UploadRow, admit: Admission) -> None:
        """Enter an upload, if it is admitted."""
        with self._accepting(admit) as connection:
            connection.execute(_uploads.insert().values(asdict(row)))

    def get(self, id: str) -> UploadRow | None:
        """The upload with this id."""
        row = self._first(sa.select(_uploads).where((_uploads.c.id == id) & self._own))
        return UploadRow(**row) if row else None

    def prolong(self, id: str, expires: str) -> None:
        """Let an upload expire later."""
        query = _uploads.update().where((_uploads.c.id == id) & self._own)
        self._change(query.values(expires=expires))

    def remove(self, id: str, *, only_expired: bool = False) -> bool:
        """Forget an upload; tells whether it was there, and had expired if that is asked for."""
        query = _uploads.delete().where((_uploads.c.id == id) & self._own)
        if only_expired:
            query = query.where(_uploads.c.expires <= self._expiry.now())
        # This makes room on a full disk.
        return bool(self._reserve.spend(lambda: self._change(query)))

    def count(self, connection: sa.Connection) -> int:
        """How many there are."""
        query = sa.select(sa.func.count()).select_from(_uploads).where(self._own)
        return connection.execute(query).scalar_one()

    def ids(self) -> set[str]:
        """Ids of all."""
        return set(self._scalars(sa.select(_uploads.c.id).where(self._own)))

    def expired(self) -> list[str]:
        """Ids of those that have expired, and are there still."""
        query = sa.select(_uploads.c.id).where(_uploads.c.expires <= self._expiry.now())
        return self._scalars(query.where(self._own))
