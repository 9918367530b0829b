"""The input formats: how a file is recognised."""

from typing import Literal

from service.errors import UnsupportedFormat

InputFormat = Literal["parquet", "csv"]

_BY_MEDIA_TYPE: dict[str, InputFormat] = {
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
    "text/csv": "csv",
    "application/csv": "csv",
}
_BY_SUFFIX: dict[str, InputFormat] = {"parquet": "parquet", "pq": "parquet", "csv": "csv"}
_PARQUET_MAGIC = b"PAR1"


def input_format(media_type: str | None, name: str | None, head: bytes, file: str) -> InputFormat:
    """Recognise the format of an upload: by media type, then file name, then first bytes.

    Parameters
    ----------
    media_type, name
        What the client said of the file; general types such as octet-stream say nothing.
    head
        The first bytes of the file.
    file
        What to call the file in an error.

    Raises
    ------
    UnsupportedFormat
        When none of the three tells.
    """
    essence = (media_type or "").partition(";")[0].strip().lower()
    if essence in _BY_MEDIA_TYPE:
        return _BY_MEDIA_TYPE[essence]
    suffix = (name or "").rpartition(".")[2].lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    raise UnsupportedFormat(
        f"{file}: media type {essence or 'none'} and name {name!r} do not tell its format; "
        f"send Parquet (application/vnd.apache.parquet, .parquet) or CSV (text/csv, .csv)"
    )
