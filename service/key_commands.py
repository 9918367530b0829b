"""`georesolve keys`: make, list and revoke API keys in the database of a service."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from service.database.engine import open_database
from service.database.keys import Keys, prefix_of
from service.settings import Settings


def create_key(settings: Settings, name: str) -> int:
    """Make a key and print it: this once, on a line of its own."""
    with _keys_of(settings) as keys:
        key = keys.create(name)
    print(key)
    _tell(f"this key of {name!r} is shown only now; it is listed as {prefix_of(key)}")
    return 0


def list_keys(settings: Settings) -> int:
    """Print what is known of all keys, one a line."""
    with _keys_of(settings) as keys:
        for key in keys.all():
            used = f"last used {key.last_used}" if key.last_used else "never used"
            state = f"revoked {key.revoked}" if key.revoked else "valid"
            print(f"{key.prefix}  {state}  created {key.created}  {used}  {key.name}")
    return 0


def revoke_key(settings: Settings, prefix: str) -> int:
    """Revoke a key, given by its prefix or whole."""
    with _keys_of(settings) as keys:
        if keys.revoke(prefix_of(prefix)):
            return 0
    _tell(f"there is no valid key {prefix_of(prefix)!r}: 'georesolve keys list' shows all")
    return 1


def _tell(message: str) -> None:
    print(f"georesolve: {message}", file=sys.stderr)


@contextmanager
def _keys_of(settings: Settings) -> Iterator[Keys]:
    engine = open_database(settings.data_dir, settings.database)
    try:
        yield Keys(engine)
    finally:
        engine.dispose()
