"""Names of datasets: each has versions, of which one is the newest.

A name is replaced in one transaction. Its older versions are kept for as long as datasets that are
not used, and go with their datasets.
"""

import re
from typing import NamedTuple

import sqlalchemy as sa

from georesolve.service.clock import is_id, now
from georesolve.service.errors import InvalidRequest, NoSuchDataset, PreconditionFailed
from georesolve.service.store.engine import Queries
from georesolve.service.store.schema import is_registered
from georesolve.service.store.schema import kept as _kept
from georesolve.service.store.schema import names as _names

FORM = "([a-z][a-z0-9._-]{0,63})(?:@([1-9][0-9]{0,8}))?"
"""A name, and a version of it."""
_IS_NEWEST = _names.c.replaced.is_(None)


class Named(NamedTuple):
    """A version of a name: `version` counts from 1, and is None for the newest."""

    name: str
    version: int | None

    @classmethod
    def parse(cls, text: str) -> "Named | None":
        """What ``places`` or ``places@3`` stands for; None for what is no name."""
        match = re.fullmatch(FORM, text)
        if match is None or is_id(match[1]):
            return None
        return cls(match[1], int(match[2]) if match[2] else None)


class Condition(NamedTuple):
    """What must hold for a name to be replaced: the headers If-Match and If-None-Match."""

    # SHA-256 of the datasets that may be replaced; None for any, and for none.
    only: frozenset[str] | None = None
    must_exist: bool = False
    must_be_new: bool = False

    def check(self, name: str, sha256: str | None) -> None:
        """Refuse to replace a newest version of this digest, None for no version."""
        if sha256 is None:
            if self.must_exist or self.only is not None:
                raise PreconditionFailed(
                    f"there is no dataset {name!r}, and If-Match asks for one: leave it out"
                )
        elif self.must_be_new:
            raise PreconditionFailed(
                f"there is a dataset {name!r} already, and If-None-Match asks for none: give its "
                "ETag as If-Match to replace it"
            )
        elif self.only is not None and sha256 not in self.only:
            raise PreconditionFailed(
                f'the newest version of {name!r} has the ETag "{sha256}", and If-Match another: '
                "look what has changed before you replace it"
            )


def is_newest(dataset: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether a dataset is the newest version of a name."""
    return sa.exists().where((_names.c.dataset == dataset) & _IS_NEWEST)


class Names(Queries):
    """The names of one owner's datasets."""

    def find(self, text: str) -> str | None:
        """The id of the dataset that a name, or a version of it, stands for."""
        named = Named.parse(text)
        if named is None:
            return None
        which = _IS_NEWEST if named.version is None else _names.c.version == named.version
        own = self._own(_names) & (_names.c.name == named.name) & which
        query = sa.select(_names.c.dataset).where(own)
        return next(iter(self._scalars(query)), None)

    def of(self, datasets: list[str]) -> dict[str, list[str]]:
        """What each of some datasets is called: ``places`` where it is the newest, ``places@3``."""
        query = sa.select(_names).where(_names.c.dataset.in_(datasets))
        found: dict[str, list[str]] = {id: [] for id in datasets}
        for row in self._rows(query.order_by(_names.c.name, _names.c.version)):
            newest = [] if row["replaced"] else [row["name"]]
            found[row["dataset"]] += [*newest, f"{row['name']}@{row['version']}"]
        return found

    def refuse_changed(self, name: str, condition: Condition) -> None:
        """Refuse a name that cannot be one, or whose newest version is not as it should be."""
        named = Named.parse(name)
        if named is None or named.version is not None:
            raise InvalidRequest(
                f"{name[:80]!r} is no name of a dataset: begin with a letter, and go on with up to "
                "63 letters, digits, '.', '_' and '-', all of them lower case"
            )
        newest = self._first(self._newest(name))
        condition.check(name, newest["sha256"] if newest else None)

    def _newest(self, name: str) -> "sa.Select[tuple[str, str]]":
        return (
            sa.select(_names.c.dataset, _kept.c.sha256)
            .join(_kept, _kept.c.id == _names.c.dataset)
            .where(self._own(_names) & (_names.c.name == name) & _IS_NEWEST)
        )

    def put(self, name: str, dataset: str, condition: Condition, expires: str | None) -> bool:
        """Let a name stand for a dataset; tells whether it is a new name.

        `refuse_changed` has seen the name before. A dataset that it stands for already makes no new
        version; one that is replaced `expires`. Raises NoSuchDataset when the dataset was removed
        meanwhile, PreconditionFailed when the condition does not hold.
        """
        of_name = self._own(_names) & (_names.c.name == name)
        count = sa.select(sa.func.max(_names.c.version)).where(of_name)
        is_there = (_kept.c.id == dataset) & is_registered
        keep = _kept.update().where(is_there).values(expires=None)
        # One replaces a name at a time: each sees what those before it did.
        with self._accepting() as connection:
            if not connection.execute(keep).rowcount:
                raise NoSuchDataset(f"the dataset {dataset!r} was removed meanwhile")
            before = connection.execute(self._newest(name)).first()
            condition.check(name, before.sha256 if before else None)
            if before and before.dataset == dataset:
                return False
            replace = _names.update().where(of_name & _IS_NEWEST)
            connection.execute(replace.values(replaced=now()))
            version = (connection.execute(count).scalar() or 0) + 1
            values = {"owner": self.owner, "name": name, "version": version, "dataset": dataset}
            connection.execute(_names.insert().values(**values, created=now()))
            if before:
                old = (_kept.c.id == before.dataset) & ~is_newest(_kept.c.id)
                connection.execute(_kept.update().where(old).values(expires=expires))
            return before is None

    def remove(self, name: str) -> list[str]:
        """Let a name and all its versions stand for nothing; returns the ids of their datasets.

        They expire in a minute: what the caller does not come to remove, the next sweep does.
        """
        of_name = self._own(_names) & (_names.c.name == name)
        with self._accepting() as connection:
            named = sa.select(_names.c.dataset).where(of_name)
            ids = list(dict.fromkeys(connection.execute(named).scalars()))
            connection.execute(_names.delete().where(of_name))
            unnamed = ~sa.exists().where(_names.c.dataset == _kept.c.id)
            alone = _kept.c.id.in_(ids) & unnamed
            connection.execute(_kept.update().where(alone).values(expires=now(60)))
        return ids
