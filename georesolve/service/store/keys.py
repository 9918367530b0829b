"""API keys: their holders have them, the database has what they begin with and their hash."""

import hashlib
import secrets
from dataclasses import dataclass

import sqlalchemy as sa

from georesolve.service.clock import in_hours, new_id, now, seconds_between
from georesolve.service.settings import KeyRole
from georesolve.service.store.engine import Queries
from georesolve.service.store.schema import keys

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
