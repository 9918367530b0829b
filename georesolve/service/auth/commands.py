"""`georesolve keys`: make, list, rotate and revoke API keys in the database of a service."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from georesolve.service.errors import CannotStart, is_disk_full
from georesolve.service.settings import KeyRole, Settings
from georesolve.service.store.engine import database_exists, name_of_database, open_database
from georesolve.service.store.keys import Key, Keys, prefix_of


def run(settings: Settings, verb: str, **given: Any) -> int:
    """Run one of the commands about keys; returns its exit code."""
    with _keys_of(settings, may_make=verb == "create") as keys:
        _VERBS[verb](keys, **given)
    return 0


def _create(keys: Keys, name: str, key_role: KeyRole, expires: float) -> None:
    """Make a key for some hours, 0 for ever, and print it: this once, on a line of its own."""
    _print_secret(keys.create(name, key_role, expires), name)


def _list(keys: Keys) -> None:
    """Print what is known of all keys, one a line."""
    for key in keys.all():
        used = f"last used {key.last_used}" if key.last_used else "never used"
        ends = f"expires {key.expires}" if key.expires else "never expires"
        state = "expired" if key.has_expired else "valid"
        state = f"revoked {key.revoked}" if key.revoked else state
        told = (key.prefix, state, key.role, f"created {key.created}", ends, used, key.name)
        print("  ".join(told))


def _rotate(keys: Keys, given: str) -> None:
    """Print the new secret of a key, given by its name or prefix; the old one ends."""
    key = _the_valid(keys, given)
    _print_secret(keys.rotate(key), key.name)
    _tell(f"{key.prefix} opens nothing any more; what was made with it is the new key's")


def _revoke(keys: Keys, given: str) -> None:
    """Revoke a key, given by its name or prefix."""
    key = _the_valid(keys, given)
    keys.revoke(key.id)
    _tell(f"{key.prefix} of {key.name!r} opens nothing any more")


_VERBS: dict[str, Callable[..., None]] = {
    "create": _create,
    "list": _list,
    "rotate": _rotate,
    "revoke": _revoke,
}


def _the_valid(keys: Keys, given: str) -> Key:
    """The valid key that somebody means who gives its name, its prefix, or the key itself."""
    meant = [
        key
        for key in keys.all()
        if key.revoked is None and (key.name == given or key.prefix == prefix_of(given))
    ]
    if not meant:
        # Not told what was given: it may be a secret.
        raise CannotStart(
            "no valid key has that name or prefix: 'georesolve keys list' shows all keys"
        )
    if len(meant) > 1:
        prefixes = ", ".join(key.prefix for key in meant)
        raise CannotStart(f"{len(meant)} keys are called {given!r}: give one of {prefixes}")
    return meant[0]


def _print_secret(key: str, name: str) -> None:
    print(key)
    _tell(f"this key of {name!r} is shown only now; it is listed as {prefix_of(key)}")


def _tell(message: str) -> None:
    print(f"georesolve: {message}", file=sys.stderr)


@contextmanager
def _keys_of(settings: Settings, *, may_make: bool = False) -> Iterator[Keys]:
    """The keys of the store, which is named on standard error."""
    place = (settings.data_dir, settings.database)
    name = name_of_database(*place)
    is_there = database_exists(*place)
    if not is_there and not may_make:
        raise CannotStart(
            f"there is no store of a service in {name}: name that of yours with --data-dir or "
            "--database-url"
        )
    _tell(f"the store is {name}" + ("" if is_there else ", made now"))
    engine = open_database(*place)
    try:
        yield Keys(engine)
    except SQLAlchemyError as error:
        if not is_disk_full(error):
            raise
        raise CannotStart(
            f"the disk of {name} is full, and nothing was changed: remove what else lies there"
        ) from error
    finally:
        engine.dispose()
