"""Files of a service, written to the disk: what is cut off goes on where it stopped.

Half a file lies beside its target, under a name with the ETag of the whole: whenever it is asked
for again, the rest is asked for. Of a Parquet result the service lists the SHA-256 of all that it
is made of, and what came is compared with these before the file gets its name.
"""

import hashlib
import re
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from georesolve.client.errors import DamagedTransfer, ServiceRefused, ServiceUnreachable
from georesolve.client.exchange import Exchange

_DIGEST = re.compile(r'"([0-9a-f]{64})"')
_MAGIC = b"PAR1"


class _Part:
    """What there is of a file so far."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.etag = self.digest = ""
        self.path = target.with_name(f".{target.name}.part")
        self._found = sorted(target.parent.glob(f".{escape(target.name)}.*.part"))
        for path in self._found:
            self._name(path.name.removesuffix(".part").rpartition(".")[2])

    def wanted(self) -> dict[str, str]:
        """The headers that ask for the rest."""
        size = self.path.stat().st_size if self.digest and self.path.exists() else 0
        # The last byte once more: a range of none is refused.
        return {"Range": f"bytes={size - 1}-", "If-Range": self.etag} if size else {}

    def open(self, response: httpx.Response) -> BinaryIO:
        """The file to write an answer to, at the byte that it begins with."""
        if response.status_code == 206:
            start = int(response.headers["content-range"].removeprefix("bytes ").partition("-")[0])
            file = self.path.open("r+b")
            file.truncate(start)
            file.seek(start)
            return file
        # What was there of another version is worth nothing.
        self.path.unlink(missing_ok=True)
        found = _DIGEST.fullmatch(response.headers.get("etag", ""))
        if found:
            self._name(found[1])
        return self.path.open("wb")

    def finish(self, told: dict[str, Any] | None) -> bool:
        """Give the file its name if its bytes are those that were told of; else nothing stays."""
        if told is not None and not _is_whole(self.path, told):
            self.path.unlink()
            return False
        self.path.replace(self._target)
        # What is left of other results that were to have this name.
        for path in self._found:
            path.unlink(missing_ok=True)
        return True

    def _name(self, digest: str) -> None:
        self.digest, self.etag = digest, f'"{digest}"'
        self.path = self._target.with_name(f".{self._target.name}.{digest}.part")


async def download(
    exchange: Exchange, address: str, target: Path, on_size: Callable[[int, int | None], None]
) -> None:
    """Write a file of a service to the disk.

    `on_size` is told the bytes that are there, and those of the whole where the service says how
    many. Raises DamagedTransfer when what came is not what its checksums say, twice.
    """
    work = exchange.wire.work
    patience = exchange.patience()
    for _ in range(2):
        part = await work(_Part, target)
        while True:
            headers = {"Accept-Encoding": "identity", **await work(part.wanted)}
            try:
                async with exchange.stream("GET", address, headers=headers) as response:
                    with await work(part.open, response) as file:
                        size = file.tell()
                        length = response.headers.get("content-length")
                        whole = size + int(length) if length else None
                        async for piece in response.aiter_raw():
                            await work(file.write, piece)
                            size += len(piece)
                            patience.renew()
                            on_size(size, whole)
                break
            except (ServiceRefused, ServiceUnreachable) as error:
                await patience.after(error)
        told = None
        if part.digest:
            parts = await exchange.ask("GET", f"{address.rpartition('/')[0]}/parts")
            told = parts.json()
        if await work(part.finish, told):
            return
    raise DamagedTransfer(
        f"what {address} sent is not what its checksum says, twice, and {str(target)!r} was not "
        "written: look at the network and at the proxies between"
    )


def _is_whole(path: Path, told: dict[str, Any]) -> bool:
    """Whether a file has all the bytes that a service lists of a result."""
    groups = [group for part in told["parts"] for group in part["row_groups"]]
    with path.open("rb") as file:
        is_parquet = file.read(len(_MAGIC)) == _MAGIC
        have_bytes = (
            hashlib.sha256(file.read(one["size_bytes"])).hexdigest() == one["sha256"]
            for one in (*groups, told["ending"])
        )
        return is_parquet and all(have_bytes) and not file.read(1)
