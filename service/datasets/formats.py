"""The input formats: their media types and file names, and how an upload's is recognised."""

from typing import Literal

from service.errors import UnsupportedFormat

InputFormat = Literal["parquet", "arrow", "csv", "geojson"]

_BY_MEDIA_TYPE: dict[str, InputFormat] = {
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
    "application/vnd.apache.arrow.stream": "arrow",
    "application/vnd.apache.arrow.file": "arrow",
    "text/csv": "csv",
    "application/csv": "csv",
    "text/tab-separated-values": "csv",
    "application/geo+json": "geojson",
}
_BY_SUFFIX: dict[str, InputFormat] = {
    "parquet": "parquet",
    "pq": "parquet",
    "geoparquet": "parquet",
    "arrows": "arrow",
    "arrow": "arrow",
    "feather": "arrow",
    "csv": "csv",
    "tsv": "csv",
    "geojson": "geojson",
}
_BY_FIRST_BYTES: dict[bytes, InputFormat] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
}


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
    for first_bytes, format in _BY_FIRST_BYTES.items():
        if head.startswith(first_bytes):
            return format
    raise UnsupportedFormat(
        f"{file}: neither its media type ({essence or 'none'}) nor its name ({name or 'none'}) "
        f"tells the format: send one of {', '.join(sorted(set(_BY_MEDIA_TYPE)))}, "
        f"or a name that ends in one of {', '.join('.' + suffix for suffix in _BY_SUFFIX)}"
    )
