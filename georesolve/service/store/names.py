"""Names of datasets: each has versions, replaced in one step, of which one is the newest."""

import re
from typing import Annotated

import sqlalchemy as sa
from pydantic import BaseModel, Field

from georesolve.service import errors
from georesolve.service.clock import is_id, now
from georesolve.service.http.answers import lists_tag
from georesolve.service.http.openapi import TEXT
from georesolve.service.store.engine import Queries
from georesolve.service.store.schema import is_registered, kept, names

FORM = "([a-z][a-z0-9._-]{0,63})(?:@([1-9][0-9]{0,8}))?"
"""A name, and a version of it."""
_IS_CURRENT = names.c.replaced.is_(None)
is_newest = sa.exists().where((names.c.dataset == kept.c.id) & _IS_CURRENT)
"""Whether a dataset is the newest version of a name."""


def _named(text: str) -> re.Match[str] | None:
    """Name and version, None for the newest, in ``places`` or ``places@3``; None for no name."""
    match = re.fullmatch(FORM, text)
    return None if match is None or is_id(match[1]) else match


class Condition(BaseModel):
    """What must hold for a name to be replaced (RFC 9110, 13.1)."""

    matches: Annotated[str | None, TEXT] = Field(
        None,
        alias="If-Match",
        description="the ETag of the version that may be replaced, or `*` for any that there is: "
        '412 if it is another one; for example `"23ce787a"`',
    )
    is_new: Annotated[str | None, TEXT] = Field(
        None,
        alias="If-None-Match",
        description="`*`: 412 if there is a dataset of that name already; for example `*`",
    )

    def check(self, name: str, sha256: str | None) -> None:
        """Refuse to replace a newest version of this digest, None for no version."""
        if self.is_new not in (None, "*"):
            raise errors.InvalidRequest(
                f"If-None-Match is {self.is_new[:80]!r}, and may be '*' here: no dataset of that "
                "name yet"
            )
        if sha256 is None:
            if self.matches is not None:
                raise errors.PreconditionFailed(
                    f"there is no dataset {name!r}, and If-Match asks for one: leave it out"
                )
        elif self.is_new is not None:
            raise errors.PreconditionFailed(
                f"there is a dataset {name!r} already, and If-None-Match asks for none: give its "
                "ETag as If-Match to replace it"
            )
        elif self.matches is not None and not lists_tag(self.matches, sha256):
            raise errors.PreconditionFailed(
                f'the newest version of {name!r} has the ETag "{sha256}", and If-Match another: '
                "look what has changed before you replace it"
            )


class Names(Queries):
    """The names of one owner's datasets."""

    def find(self, text: str) -> str | None:
        """The id of the dataset that a name, or a version of it, stands for."""
        if (named := _named(text)) is None:
            return None
        name, version = named.groups()
        which = _IS_CURRENT if version is None else names.c.version == int(version)
        own = self._own(names) & (names.c.name == name) & which
        query = sa.select(names.c.dataset).where(own)
        return next(iter(self._scalars(query)), None)

    def of(self, datasets: list[str]) -> dict[str, list[str]]:
        """What each of some datasets is called: ``places`` where it is the newest, ``places@3``."""
        query = sa.select(names).where(names.c.dataset.in_(datasets))
        found: dict[str, list[str]] = {id: [] for id in datasets}
        for row in self._rows(query.order_by(names.c.name, names.c.version)):
            newest = [] if row["replaced"] else [row["name"]]
            found[row["dataset"]] += [*newest, f"{row['name']}@{row['version']}"]
        return found

    def refuse_changed(self, name: str, condition: Condition) -> None:
        """Refuse a name that cannot be one, or whose newest version is not as it should be."""
        named = _named(name)
        if named is None or named[2]:
            raise errors.InvalidRequest(
                f"{name[:80]!r} is no name of a dataset: begin with a letter, and go on with up to "
                "63 letters, digits, '.', '_' and '-', all of them lower case"
            )
        newest = self._first(self._newest(name))
        condition.check(name, newest["sha256"] if newest else None)

    def _newest(self, name: str) -> "sa.Select[tuple[str, str]]":
        return (
            sa.select(names.c.dataset, kept.c.sha256)
            .join(kept, kept.c.id == names.c.dataset)
            .where(self._own(names) & (names.c.name == name) & _IS_CURRENT)
        )

    def put(self, name: str, dataset: str, condition: Condition, expires: str | None) -> bool:
        """Let a name stand for a dataset; tells whether it is new. The version before `expires`."""
        of_name = self._own(names) & (names.c.name == name)
        count = sa.select(sa.func.max(names.c.version)).where(of_name)
        is_there = (kept.c.id == dataset) & is_registered
        keep = kept.update().where(is_there).values(expires=None)
        # One replaces a name at a time: each sees what those before it did.
        with self._accepting() as connection:
            if not connection.execute(keep).rowcount:
                raise errors.NoSuchDataset(f"the dataset {dataset!r} was removed meanwhile")
            before = connection.execute(self._newest(name)).first()
            condition.check(name, before.sha256 if before else None)
            if before and before.dataset == dataset:
                return False
            replace = names.update().where(of_name & _IS_CURRENT)
            connection.execute(replace.values(replaced=now()))
            version = (connection.execute(count).scalar() or 0) + 1
            values = {"owner": self.owner, "name": name, "version": version, "dataset": dataset}
            connection.execute(names.insert().values(**values, created=now()))
            if before:
                old = (kept.c.id == before.dataset) & ~is_newest
                connection.execute(kept.update().where(old).values(expires=expires))
            return before is None

    def remove(self, name: str, expires: str | None) -> list[str]:
        """Let a name stand for nothing; returns the ids of the datasets that have no name now.

        What has another name stays, and `expires` where it is the newest version of none.
        """
        of_name = self._own(names) & (names.c.name == name)
        is_named = sa.exists().where(names.c.dataset == kept.c.id)
        old = sa.case((is_named, sa.literal(expires, sa.String)), else_=now())
        with self._accepting() as connection:
            removed = names.delete().where(of_name).returning(names.c.dataset)
            was = kept.c.id.in_({*connection.execute(removed).scalars()})
            update = kept.update().where(was & ~is_newest)
            connection.execute(update.values(expires=old))
            return list(connection.execute(sa.select(kept.c.id).where(was & ~is_named)).scalars())
