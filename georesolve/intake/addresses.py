"""Addresses of files: how they are written, and which of them an operator has listed.

Nothing is asked for unless the address, as it is written, lies below a listed prefix. Addresses are
plain: no percent signs, queries, user names or dots between slashes, so what is compared is what is
asked for. Links of a folder that lead out of it are refused.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from georesolve.intake.errors import Refused, SinkNotAllowed, SourceNotAllowed
from georesolve.workers.sets.sources import Scheme, href_of

LONGEST = 1000
"""Characters of an address at most."""
_PATHS: dict[Scheme, re.Pattern[str]] = {
    "file": re.compile(r"/[\w.~=+,:@/*-]+", re.ASCII),
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{2,62}(/[\w.~=+,:/*-]*)?", re.ASCII),
    # A host, and a port if it is not 443.
    "https": re.compile(
        r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[\w.~=+,:@/-]*)?", re.ASCII
    ),
}


class Address(NamedTuple):
    """Where files lie: a path, in which * stands for any characters but a slash."""

    scheme: Scheme
    path: str


def is_href(text: str) -> bool:
    """Whether a text is meant as an address, be it a wrong one."""
    return "://" in text


def address_of(href: str, refusal: type[Refused] = SourceNotAllowed) -> Address:
    """Take an address apart; raises `refusal` when it is not written plainly, or has no scheme."""
    given, _, path = href.partition("://")
    *folders, last = path.lstrip("/").split("/")
    is_plain = not {"", ".", ".."}.intersection(folders) and last not in (".", "..")
    for scheme, plain in _PATHS.items():
        if scheme == given and is_plain and len(href) <= LONGEST and plain.fullmatch(path):
            return Address(scheme, path)
    raise refusal(
        f"{href[:200]!r} is no address that is allowed: write it as in s3://bucket/folder/, "
        f"file:///folder/ or https://host/folder/file.parquet, in at most {LONGEST} characters: "
        "letters, digits and . ~ = + , : @ - _ *, without '..', user names, queries and percent "
        "signs"
    )


def prefixes_of(listed: str | None) -> tuple[Address, ...]:
    """The prefixes that an operator listed, separated by commas; raises ValueError."""
    prefixes = []
    for one in filter(None, map(str.strip, (listed or "").split(","))):
        scheme, path = address_of(one)
        if "*" in path:
            raise ValueError(f"{one!r} has a *, and is to be a folder")
        prefixes.append(Address(scheme, path.rstrip("/") + "/"))
    return tuple(prefixes)


class Prefixes:
    """The prefixes that an operator listed with a setting; an address below none is refused."""

    def __init__(self, listed: str | None, setting: str, refusal: type[Refused]) -> None:
        self._prefixes = prefixes_of(listed)
        self._setting = setting
        self._refusal = refusal

    def find(self, href: str) -> tuple[Address, Address]:
        """An address, and the prefix that it lies below; raises the refusal, and asks nothing."""
        address = address_of(href, self._refusal)
        for prefix in self._prefixes:
            if address.scheme == prefix.scheme and f"{address.path}/".startswith(prefix.path):
                return address, prefix
        listed = ", ".join(href_of(*prefix) for prefix in self._prefixes) or "none"
        raise self._refusal(
            f"{href[:200]!r} lies below no prefix that is allowed here; the operator of the "
            f"service lists them with the setting {self._setting}: {listed}"
        )

    def refuse_links(self, paths: Iterable[str], prefix: Address, href: str) -> None:
        """Refuse local files that lie elsewhere than they seem; raises the refusal."""
        folder = Path(prefix.path).resolve()
        for path in paths if prefix.scheme == "file" else ():
            if not Path(path).resolve().is_relative_to(folder):
                raise self._refusal(
                    f"{href[:200]!r}: {Path(path).name!r} leads out of the folder that the "
                    "operator listed"
                )


class Sinks(Prefixes):
    """Where results may be written besides the folder of the service."""

    def __init__(self, listed: str | None) -> None:
        super().__init__(listed, "sinks", SinkNotAllowed)

    def output(self, href: str) -> str:
        """The address of a folder for one result, with a slash at its end; asks for nothing."""
        address, prefix = self.find(href)
        if "*" in address.path:
            raise SinkNotAllowed(
                f"{href[:200]!r} is no folder: name one of file:// or s3://, for this result alone"
            )
        if f"{address.path.rstrip('/')}/" == prefix.path:
            raise SinkNotAllowed(
                f"{href[:200]!r} is all of what is listed for results: name a folder in it, for "
                "this result alone"
            )
        self.refuse_links([address.path], prefix, href)
        return f"{href_of(*address).rstrip('/')}/"
