"""What clients are told of the parts of a result."""

from pydantic import BaseModel, Field


class Bytes(BaseModel):
    """Bytes that stand one after the other in a file."""

    size_bytes: int
    sha256: str


class PartInfo(BaseModel):
    """A part of a result: a Parquet file of its own."""

    href: str
    rows: int
    size_bytes: int = Field(description="of its file")
    digest: str = Field(description="of its file, and its ETag")
    row_groups: list[Bytes]
    ending: Bytes = Field(description="what stands behind its row groups in its own file")


class Parts(BaseModel):
    """The parts of a result, in the order of their rows."""

    digest: str = Field(description="of matches.parquet, and its ETag")
    rows: int
    size_bytes: int = Field(description="of matches.parquet")
    parts: list[PartInfo]
    ending: Bytes = Field(description="what stands behind all row groups in matches.parquet")
