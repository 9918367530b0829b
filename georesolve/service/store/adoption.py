"""What was made without keys, and how it becomes a key's."""

from typing import NamedTuple

import sqlalchemy as sa

from georesolve.service import errors
from georesolve.service.clock import now
from georesolve.service.store.engine import Queries
from georesolve.service.store.keys import Key
from georesolve.service.store.schema import is_registered, jobs, kept, names

NOBODY = ""
"""The owner of what was made without keys."""


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
