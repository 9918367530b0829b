"""What clients are told of the parts of a result."""

from typing import Self

from pydantic import BaseModel, Field

from georesolve.workers.manifest import Manifest
from georesolve.workers.parts import Part
from georesolve.workers.splice import RowGroup


class Bytes(BaseModel):
    """Bytes that stand one after the other in a file."""

    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, group: RowGroup) -> Self:
        """Those of a row group, or of what stands behind the last one."""
        return cls(size_bytes=group.size_bytes, sha256=group.sha256)


class PartInfo(BaseModel):
    """A part of a result: a Parquet file of its own."""

    href: str
    rows: int
    size_bytes: int = Field(description="of its file")
    digest: str = Field(description="of its file, and its ETag")
    row_groups: list[Bytes]
    ending: Bytes = Field(description="what stands behind its row groups in its own file")

    @classmethod
    def of(cls, part: Part, base: str) -> Self:
        """A part, whose address begins so."""
        return cls(
            href=f"{base}/{part.name}",
            rows=part.rows,
            size_bytes=part.size_bytes,
            digest=part.digest,
            row_groups=[Bytes.of(group) for group in part.groups],
            ending=Bytes.of(part.ending),
        )


class Parts(BaseModel):
    """The parts of a result, in the order of their rows."""

    digest: str = Field(description="of matches.parquet, and its ETag")
    rows: int
    size_bytes: int = Field(description="of matches.parquet")
    parts: list[PartInfo]
    ending: Bytes = Field(description="what stands behind all row groups in matches.parquet")

    @classmethod
    def of(cls, manifest: Manifest, base: str) -> Self:
        """Those of a result; their addresses begin so."""
        return cls(
            digest=manifest.digest,
            rows=manifest.rows,
            size_bytes=manifest.size_bytes,
            parts=[PartInfo.of(part, base) for part in manifest.parts],
            ending=Bytes.of(manifest.ending),
        )
