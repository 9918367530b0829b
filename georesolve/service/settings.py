"""What the service can be told: each setting is a `GEORESOLVE_*` variable and a flag of `serve`."""

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from georesolve.io.source_files import Scheme, href_of
from georesolve.io.urls import address_of, prefixes_of
from georesolve.workers.cluster_settings import ClusterOptions, ClusterSettings
from georesolve.workers.logs import LogFormat

SECRETS = Path("/run/secrets")
"""Where containers find secrets: a file named as the variable of a setting holds its value."""
_Hours = Annotated[float, Field(ge=0, le=876_600.0)]
"""What is to be kept for longer than a century is to be kept for ever."""
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, le=86_400.0)]
KeyRole = Literal["user", "admin", "metrics"]
"""What a key may do. `user`: all that is its own; `admin`: what all keys make, too; `metrics`:
`/metrics` alone."""
_PREFIX = "GEORESOLVE_"
_NO_SETTINGS = ("TAG", "KEY")
"""Variables of the same prefix: docker-compose.yml's own, which `.env` passes on, and clients'."""
_MOST_FRONTS = 16
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def _listed(given: str | None) -> tuple[str, ...]:
    names = (name.strip().lower() for name in (given or "").split(","))
    return tuple(name for name in names if name)


def _are_origins(given: str) -> str:
    for origin in _listed(given):
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            raise ValueError(
                f"{origin!r} is no origin: give scheme, host and port as a browser sends them, "
                "such as https://map.example or http://localhost:3000, or * for any"
            )
    return given


def _are_prefixes(given: str) -> str:
    prefixes_of(given)
    return given


def _can_be_written(given: str) -> str:
    if any(prefix.scheme == "https" for prefix in prefixes_of(given)):
        raise ValueError("results are written to file:// and s3://, not to https://")
    return given


def _in_a_bucket(given: str) -> str:
    address = address_of(given)
    if address.scheme != "s3" or "*" in address.path or "/" not in address.path.strip("/"):
        raise ValueError(
            f"{given!r} is no prefix of a bucket: give one such as s3://bucket/georesolve/; a "
            "folder is named with data_dir"
        )
    return f"s3://{address.path.strip('/')}/"


def _is_path(given: str) -> str:
    if not re.fullmatch(r"(/[\w.~-]+)*/?", given, re.ASCII):
        raise ValueError(
            f"{given!r} is no path: begin it with a slash, as in /georesolve, and use letters, "
            "digits, '.', '_', '~' and '-'"
        )
    return given.rstrip("/")


class Settings(BaseSettings, ClusterOptions):
    """Settings of one service process."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    role: Literal["front", "runner"] | None = None
    """front or runner, to run one of them alone: it answers requests, or runs jobs; by default
    both, each anew when it dies"""
    fronts: int = Field(
        default_factory=lambda: max(1, min(_MOST_FRONTS, len(os.sched_getaffinity(0)) // 2)),
        ge=1,
        le=64,
    )
    """processes that answer requests; by default one for two cores, at most 16"""
    host: str = "127.0.0.1"
    """address to listen on"""
    port: int = Field(8000, ge=0, le=65535)
    """port to listen on; 0 takes a free one"""
    insecure: bool = False
    """listen beyond loopback although there are no API keys"""
    allowed_hosts: str | None = None
    """names that requests may call the service by, separated by commas, * for any; by default those
    of loopback and the host"""
    cors_origins: Annotated[str, AfterValidator(_are_origins)] | None = None
    """origins of pages that a browser lets use the service, separated by commas, e.g.
    https://map.example; * for any; by default none but its own"""
    root_path: Annotated[str, AfterValidator(_is_path)] = ""
    """path below which a proxy shows the service, e.g. /georesolve"""
    proxies: str = "127.0.0.1,::1"
    """addresses or networks of proxies in front, separated by commas, * for any: their
    X-Forwarded-For and X-Forwarded-Proto tell who asks, and how"""
    data_dir: Path = Path("georesolve-data")
    """folder of datasets and jobs"""
    store: Annotated[str, AfterValidator(_in_a_bucket)] | None = None
    """s3://bucket/prefix, to keep datasets and results there instead of in the data folder, which
    then is each process's own"""
    database_url: SecretStr | None = None
    """postgresql://user:password@host/name, instead of SQLite in the data folder"""

    log_format: LogFormat = "text"
    """text, or json for a line of JSON an event, with ids of request and job"""

    concurrent_jobs: _Count = Field(2, le=64)
    """jobs that run at the same time"""
    queue_jobs: _Count = 1000
    """jobs of the service that may wait and run at a time"""
    key_jobs: _Count = 100
    """jobs of one API key that may wait and run"""
    key_bytes: _Count = 64 << 30
    """bytes that the datasets and results of one API key may take, with what its unfinished jobs
    are expected to; at most half of the disk of the data folder"""
    result_bytes: _Count = 64 << 30
    """bytes that a result of all within a distance may have"""
    keep_free: int = Field(1 << 30, ge=0)
    """bytes of the disk to keep free: uploads and jobs stop below, so that deleting works"""
    result_hours: _Hours = 7 * 24.0
    """hours that the result of a job is kept; 0 for ever"""
    job_hours: _Hours = 90 * 24.0
    """hours after its end that a job without a result is remembered; 0 for ever"""
    dataset_hours: _Hours = 30 * 24.0
    """hours that a dataset is kept after its last use; 0 for ever"""
    sync_rows: _Count = 4_000_000
    """observations times k, and references, that a synchronous request may have"""
    upload_bytes: _Count = 8 << 30
    """bytes that one request may send"""
    connections: _Count = 1000
    """connections that one front may have open; at most a quarter of the open files allowed"""
    header_seconds: _Seconds = 20.0
    """time that the headers of a request may take"""
    idle_seconds: _Seconds = 75.0
    """time that a connection may be without a request"""
    body_seconds: _Seconds = 60.0
    """time that a client may pause while it sends a body or reads an answer"""
    inline_bytes: _Count = 16 << 20
    """bytes of a JSON request"""
    sources: Annotated[str, AfterValidator(_are_prefixes)] | None = None
    """folders and buckets that inputs may be read from by address, separated by commas, e.g.
    file:///data/,s3://bucket/observations/,https://host/data/; by default none"""
    sinks: Annotated[str, AfterValidator(_can_be_written)] | None = None
    """folders and buckets that results may be written to by address, separated by commas, e.g.
    s3://bucket/results/; by default none"""
    dataset_rows: _Count = 1 << 28
    """rows of one dataset"""
    dataset_columns: int = Field(256, ge=2)
    """columns of one dataset"""
    index_bytes: int = Field(8 << 30, ge=0)
    """bytes of the disk that indexes of registered datasets may take, and as many that maps of jobs
    may"""
    search_bytes: int | None = Field(None, ge=64 << 20)
    """memory for the references that small requests search, and for the columns that they carry; by
    default a quarter of the machine's"""
    decode_bytes: int = Field(4 << 30, ge=256 << 20)
    """memory that decoding one file may take"""
    concurrent_decodes: _Count = Field(4, le=64)
    """files that are decoded at the same time"""
    decode_seconds: _Seconds = 300.0
    """time that decoding one file may take"""

    @classmethod
    def gathered(cls, **given: Any) -> Self:
        """Settings that are given, completed from the environment and from secrets in files."""
        return cls(**{"_secrets_dir": SECRETS if SECRETS.is_dir() else None, **given})

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        dashboard = self.dashboard_address.rpartition(":")[0]
        if not self.insecure and not _is_loopback(dashboard):
            raise ValueError(
                f"dashboard_address is {self.dashboard_address!r}: the Dask dashboard knows no "
                "passwords, so it listens on loopback (127.0.0.1:8787) unless insecure is set"
            )
        own = {"data_dir": _resolved("file", str(self.data_dir))}
        own |= {"store": self.store} if self.store else {}
        for name, listed in (("sources", self.sources), ("sinks", self.sinks)):
            for prefix in prefixes_of(listed):
                one = _resolved(*prefix)
                for setting, kept in own.items():
                    if kept.startswith(one) or one.startswith(kept):
                        raise ValueError(
                            f"{name} lists {href_of(*prefix)}, and {setting} is {kept}: clients "
                            "may not read or write where the service keeps its files; name a "
                            "folder or prefix beside it"
                        )
        if self.store and self.role and not self.database_url:
            raise ValueError(
                f"store is {self.store} and role is {self.role!r}: processes that share no folder "
                "meet in a Postgres database; name it with database_url"
            )
        if self.scheduler is not None and self.scheduler_file is not None:
            raise ValueError(
                f"scheduler is {self.scheduler!r} and scheduler_file is "
                f"{str(self.scheduler_file)!r}: name the scheduler once"
            )
        return self

    @property
    def fronts_here(self) -> int:
        """How many fronts share this machine."""
        return 1 if self.role == "front" else self.fronts

    @property
    def is_open(self) -> bool:
        """Whether requests need no key as long as there are none."""
        return self.insecure or _is_loopback(self.host)

    def hosts(self) -> tuple[str, ...]:
        """Names that requests may call the service by."""
        if self.allowed_hosts is not None:
            return _listed(self.allowed_hosts)
        # Whoever listens on all addresses is called by any name.
        is_any = self.host == "" or ((at := _address(self.host)) and at.is_unspecified)
        own = "*" if is_any else self.host.lower()
        return tuple(dict.fromkeys((*_LOOPBACK_NAMES, own)))

    def origins(self) -> tuple[str, ...]:
        """Origins whose pages may use the service."""
        return _listed(self.cors_origins)

    @property
    def database(self) -> str | None:
        """The URL of the database in the clear."""
        return self.database_url.get_secret_value() if self.database_url else None

    def cluster(self) -> ClusterSettings:
        """The part of the settings that the cluster needs."""
        shared = self.model_dump(include=set(ClusterSettings.model_fields))
        return ClusterSettings(scratch=self.data_dir / "scratch", **shared)


def misspelt(variables: Iterable[str]) -> dict[str, str | None]:
    """Variables that look like settings and are none, each with the one that may be meant."""
    known = [name.upper() for name in Settings.model_fields]
    unknown: dict[str, str | None] = {}
    for variable in sorted(variables):
        name = variable.upper().removeprefix(_PREFIX)
        if name != variable.upper() and name not in (*known, *_NO_SETTINGS):
            near = difflib.get_close_matches(name, known, 1)
            unknown[variable] = f"{_PREFIX}{near[0]}" if near else None
    return unknown


def _resolved(scheme: Scheme, at: str) -> str:
    """The address of a folder, past all links."""
    return href_of(scheme, f"{str(Path(at).resolve()).rstrip('/')}/" if scheme == "file" else at)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def _is_loopback(host: str) -> bool:
    return host == "localhost" if (at := _address(host)) is None else at.is_loopback
