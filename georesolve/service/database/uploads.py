"""Uploads in the database: how large each will be, what its client said of it, when it expires."""

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from georesolve.service.database.queries import Admission, Queries
from georesolve.service.database.schema import uploads as _uploads


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
    """The uploads of one owner, or of all for None. Every method is one transaction."""

    def add(self, row: UploadRow, admit: Admission) -> None:
        """Enter an upload, if it is admitted."""
        with self._accepting(admit) as connection:
            connection.execute(_uploads.insert().values(asdict(row)))

    def get(self, id: str) -> UploadRow | None:
        """The upload with this id."""
        row = self._first(sa.select(_uploads).where((_uploads.c.id == id) & self._own(_uploads)))
        return UploadRow(**row) if row else None

    def prolong(self, id: str, expires: str) -> None:
        """Let an upload expire later."""
        query = _uploads.update().where((_uploads.c.id == id) & self._own(_uploads))
        self._change(query.values(expires=expires))

    def remove(self, id: str, *, only_expired: bool = False) -> bool:
        """Forget an upload; tells whether it was there, and had expired if that is asked for."""
        query = _uploads.delete().where((_uploads.c.id == id) & self._own(_uploads))
        if only_expired:
            query = query.where(self._expired(_uploads))
        return bool(self._spend(query))

    def count(self, connection: sa.Connection) -> int:
        """How many there are."""
        query = sa.select(sa.func.count()).select_from(_uploads).where(self._own(_uploads))
        return connection.execute(query).scalar_one()

    def ids(self) -> set[str]:
        """Ids of all."""
        return set(self._scalars(sa.select(_uploads.c.id).where(self._own(_uploads))))

    def expired(self) -> list[str]:
        """Ids of those that have expired, and are there still."""
        query = sa.select(_uploads.c.id).where(self._expired(_uploads))
        return self._scalars(query.where(self._own(_uploads)))
