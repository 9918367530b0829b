"""API keys: their holders have them, the database has what they begin with and their hash.

What was made without keys belongs to nobody, and `Adoption` gives it to a key.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from georesolve.service import errors
from georesolve.service.clock import in_hours, new_id, now, seconds_between
from georesolve.service.settings import KeyRole
from georesolve.service.store.engine import Queries
from georesolve.service.store.schema import is_registered, jobs, kept, keys, names

NOBODY = ""
"""The owner of what was made without keys."""
_MARK = "gr"
"""What every key begins with, so that one that leaked is recognised."""


@dataclass(frozen=True)
class Key:
    """What is known of a key. Its 256 random bits need no slow hash; its `id` is an owner."""

    id: str
    prefix: str
    sha256: str
    name: str
    created: str
    revoked: str | None
    last_used: str | None
    role: KeyRole
    expires: str | None

    @property
    def has_expired(self) -> bool:
        """Whether it has ended by itself."""
        return self.expires is not None and self.expires <= now()


class Keys(Queries):
    """The keys of one database. Every method is one transaction."""

    def create(self, name: str, role: KeyRole = "user", hours: float = 0) -> str:
        """Make a key for so many hours, 0 for ever, and return it; the database has its hash."""
        secret, values = _new_secret()
        values["expires"] = in_hours(hours)
        self._change(keys.insert().values(**values, id=new_id(), name=name, role=role))
        return secret

    def rotate(self, key: Key) -> str:
        """Give a key a new secret and return it; one that expires is valid for as long again."""
        secret, values = _new_secret()
        if key.expires is not None:
            values["expires"] = now(seconds_between(key.created, key.expires))
        self._change(keys.update().where(keys.c.id == key.id).values(**values, last_used=None))
        return secret

    def all(self) -> list[Key]:
        """All keys, revoked ones too, the oldest first."""
        query = sa.select(keys).order_by(keys.c.created, keys.c.id)
        return [Key(**row) for row in self._rows(query)]

    def revoke(self, id: str) -> None:
        """Let a key open nothing any more."""
        query = keys.update().where((keys.c.id == id) & keys.c.revoked.is_(None))
        self._change(query.values(revoked=now()))

    def note_use(self, key: Key) -> None:
        """Note that a key is used now."""
        # Not by its id: it may have another secret meanwhile, which nobody has used.
        self._change(keys.update().where(keys.c.prefix == key.prefix).values(last_used=now()))


def _new_secret() -> tuple[str, dict[str, str | None]]:
    """A new key, and what the database knows of it."""
    prefix = f"{_MARK}_{secrets.token_hex(4)}"
    key = f"{prefix}_{secrets.token_urlsafe(32)}"
    return key, {"prefix": prefix, "sha256": hash_of(key), "created": now()}


def prefix_of(key: str) -> str:
    """The part of a key that names it."""
    return key[: len(_MARK) + 9]


def hash_of(key: str) -> str:
    """What the database knows of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


class Unowned(NamedTuple):
    """How much was made without keys."""

    datasets: int
    jobs: int

    def __str__(self) -> str:
        numbers = ((self.datasets, "dataset"), (self.jobs, "job"))
        return " and ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in numbers)


class Adoption(Queries):
    """Gives what was made without keys to one."""

    def unowned(self) -> Unowned:
        """How much there is to give."""
        of_none = [
            sa.select(sa.func.count()).where(condition).scalar_subquery()
            for condition in ((kept.c.owner == NOBODY) & is_registered, jobs.c.owner == NOBODY)
        ]
        with self._single.connect() as connection:
            return Unowned(*connection.execute(sa.select(*of_none)).one())

    def give_to(self, key: Key) -> None:
        """Give all of it to a key, in one step: CannotStart where a name would be another's."""
        # Nothing is registered, named or accepted meanwhile.
        with self._accepting() as connection:
            self._refuse_taken_names(connection, key)
            self._join_same_content(connection, key)
            known = sa.select(jobs.c.key).where((jobs.c.owner == key.id) & jobs.c.key.is_not(None))
            repeated = (jobs.c.owner == NOBODY) & jobs.c.key.in_(known)
            connection.execute(jobs.update().where(repeated).values(key=None))
            for table in (kept, names, jobs):
                given = table.update().where(table.c.owner == NOBODY)
                connection.execute(given.values(owner=key.id))

    def _refuse_taken_names(self, connection: sa.Connection, key: Key) -> None:
        own = sa.select(names.c.name).where(names.c.owner == key.id)
        both = sa.select(names.c.name).where((names.c.owner == NOBODY) & names.c.name.in_(own))
        if taken := connection.execute(both.distinct().order_by(names.c.name)).scalars().all():
            raise errors.CannotStart(
                f"the key {key.prefix} of {key.name!r} has datasets called {', '.join(taken)} of "
                "its own: give what was made without keys to another key, or remove one of each "
                "(DELETE /datasets/ID, by a key of the role admin where it has no owner)"
            )

    def _join_same_content(self, connection: sa.Connection, key: Key) -> None:
        """Let one dataset stand for content that the key has registered, too."""
        own = kept.alias()
        is_own = (own.c.owner == key.id) & (own.c.kind == "dataset") & (own.c.state == "whole")
        pairs = sa.select(kept.c.id, own.c.id).join(own, own.c.sha256 == kept.c.sha256)
        of_none = (kept.c.owner == NOBODY) & is_registered
        for twice, stays in connection.execute(pairs.where(of_none & is_own)).all():
            named = connection.execute(
                names.update().where(names.c.dataset == twice).values(dataset=stays)
            )
            if named.rowcount:
                connection.execute(kept.update().where(kept.c.id == stays).values(expires=None))
            # A live job reads the file that it was accepted with, which goes once none does.
            for column in (jobs.c.observations, jobs.c.references):
                ended = (column == twice) & jobs.c.finished.is_not(None)
                connection.execute(jobs.update().where(ended).values({column: stays}))
            goes = {"kind": "input", "expires": now()}
            connection.execute(kept.update().where(kept.c.id == twice).values(goes))
