"""`georesolve keys`: make, list, rotate and revoke API keys in the database of a service."""

import shlex
import sys

from sqlalchemy.exc import SQLAlchemyError

from georesolve.service import errors
from georesolve.service.settings import KeyRole, Settings
from georesolve.service.store.engine import (
    database_exists,
    name_of_database,
    open_database,
    refuse_missing,
)
from georesolve.service.store.keys import Adoption, Key, Keys, prefix_of


def run(
    settings: Settings,
    verb: str,
    name: str = "",
    key_role: KeyRole = "user",
    expires: float = 0,
    given: str = "",
) -> int:
    """Run a command about keys, of which `given` names one; a new one `expires` in some hours."""
    place = (settings.data_dir, settings.database)
    store, is_there = name_of_database(*place), database_exists(*place)
    if verb != "create":
        refuse_missing(*place)
    _tell(f"the store is {store}" + ("" if is_there else ", made now"))
    engine = open_database(*place)
    keys = Keys(engine)
    try:
        if verb == "create":
            _print_secret(keys.create(name, key_role, expires), name)
            if any(unowned := Adoption(engine).unowned()):
                _tell(
                    f"{unowned} were made without keys, and no key but one of the role admin sees "
                    f"them: 'georesolve keys adopt {shlex.quote(name)}' gives them to this one"
                )
        elif verb == "list":
            for key in keys.all():
                print(_line(key))
        else:
            key = _the_valid(keys, given)
            if verb == "adopt":
                _tell(_adopted(Adoption(engine), key))
                return 0
            if verb == "rotate":
                _print_secret(keys.rotate(key), key.name)
                opens = "opens nothing any more; what was made with it is the new key's"
            else:
                keys.revoke(key.id)
                opens = f"of {key.name!r} opens nothing any more"
            _tell(f"{key.prefix} {opens}")
    except SQLAlchemyError as error:
        if not errors.is_disk_full(error):
            raise
        raise errors.CannotStart(
            f"the disk of {store} is full, and nothing was changed: remove what else lies there"
        ) from error
    finally:
        engine.dispose()
    return 0


def _adopted(adoption: Adoption, key: Key) -> str:
    """Give a key what was made without keys; returns what to say of it."""
    if key.role == "metrics":
        raise errors.CannotStart(
            f"the key {key.prefix} of {key.name!r} has the role metrics, which sees no datasets "
            "and no jobs: name a key of the role user or admin"
        )
    if not any(unowned := adoption.unowned()):
        return "there is nothing that was made without keys, and nothing was changed"
    adoption.give_to(key)
    return f"{unowned} that were made without keys are from now on those of {key.name!r}"


def _line(key: Key) -> str:
    used = f"last used {key.last_used}" if key.last_used else "never used"
    ends = f"expires {key.expires}" if key.expires else "never expires"
    state = "expired" if key.has_expired else "valid"
    state = f"revoked {key.revoked}" if key.revoked else state
    return "  ".join((key.prefix, state, key.role, f"created {key.created}", ends, used, key.name))


def _the_valid(keys: Keys, given: str) -> Key:
    """The valid key that somebody means who gives its name, its prefix, or the key itself."""
    valid = [key for key in keys.all() if key.revoked is None]
    meant = [key for key in valid if key.name == given or key.prefix == prefix_of(given)]
    if not meant:
        # Not told what was given: it may be a secret.
        raise errors.CannotStart(
            "no valid key has that name or prefix: 'georesolve keys list' shows all keys"
        )
    if len(meant) > 1:
        prefixes = ", ".join(key.prefix for key in meant)
        raise errors.CannotStart(f"{len(meant)} keys are called {given!r}: give one of {prefixes}")
    return meant[0]


def _print_secret(key: str, name: str) -> None:
    print(key)
    _tell(f"this key of {name!r} is shown only now; it is listed as {prefix_of(key)}")


def _tell(message: str) -> None:
    print(f"georesolve: {message}", file=sys.stderr)
