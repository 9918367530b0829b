"""Addresses of point sets: which are read at all, and which files they name."""

import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georesolve.io import storage
from georesolve.io.columns import Reading
from georesolve.io.datasets import Coordinates, column_sizes, read_rows
from georesolve.io.errors import (
    InvalidInput,
    SinkNotAllowed,
    SourceNotAllowed,
    SourceUnreadable,
    TooLarge,
)
from georesolve.io.points import Bounds
from georesolve.io.source_files import SourceFailed
from georesolve.io.storage import is_url
from georesolve.io.urls import Sinks, Sources, address_of, prefixes_of
from tests.conftest import points
from tests.https_server import serving


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the one address that is listed for s3, and of its neighbours."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.path)
            self.send_error(403)

        do_HEAD = do_PUT = do_POST = do_GET

        def log_message(self, *_):
            pass

    with _served(Handler) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        storage.open_store.cache_clear()
        yield seen, port
        storage.open_store.cache_clear()


@contextmanager
def _served(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# PORT is that of a server which counts what it is asked, FOLDER one that is listed.
REFUSED = [
    # Other schemes, and other ways to write one.
    "http://127.0.0.1:PORT/x.parquet", "https://127.0.0.1:PORT/x.parquet",
    "ftp://127.0.0.1:PORT/x.parquet", "gopher://127.0.0.1:PORT/x", "S3://bucket/open/x.parquet",
    "s3a://bucket/open/x.parquet", "FILE:///FOLDER/a.parquet", "gs://bucket/x.parquet",
    "hdfs://127.0.0.1:PORT/x", "jar:file:///FOLDER/a.parquet!/x", "dict://127.0.0.1:PORT/x",
    "data://text/plain,x", "://bucket/open/x", "unix:///run/x.sock", "s3:/bucket/open/x.parquet",
    # Metadata services, by name and by address.
    "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/latest/",
    "http://metadata.google.internal/computeMetadata/v1/", "http://2852039166/latest/",
    "http://0xa9fea9fe/", "http://169.254.169.254.nip.io/", "s3://169.254.169.254/latest",
    "http://instance-data/latest/", "http://0/", "http://127.1:PORT/",
    # Who asks, and where: an endpoint is never part of an address.
    "s3://user:password@bucket/open/x.parquet", "s3://key@bucket/open/x.parquet",
    "s3://bucket/open/x.parquet?endpoint_override=127.0.0.1:PORT",
    "s3://bucket/open/x.parquet?scheme=http&endpoint_override=169.254.169.254",
    "s3://bucket/open/x.parquet#fragment", "s3://bucket:PORT/open/x.parquet",
    "s3://127.0.0.1:PORT/open/x.parquet", "file://127.0.0.1:PORT/FOLDER/a.parquet",
    "file://localhost/FOLDER/a.parquet",
    # Other buckets, and names that only begin as those that are listed.
    "s3://other/open/x.parquet", "s3://bucket", "s3://bucket/", "s3://bucket/x.parquet",
    "s3://bucket/opened/x.parquet", "s3://bucket/ope*/x.parquet", "s3://bucket/*", "s3://*/open/x",
    "s3://bucket2/open/x.parquet", "s3://buckets/open/", "s3://b*/open/x",
    # Out of a folder.
    "s3://bucket/open/../secret/x.parquet", "s3://bucket/open/./../x.parquet",
    "s3://bucket/open//x.parquet", "s3://bucket//open/x.parquet", "s3://bucket/open/..",
    "file:///FOLDER/../secret.parquet", "file:///FOLDER/./a.parquet", "file:///FOLDER/..",
    "file:///FOLDER//a.parquet", "file:////FOLDER/a.parquet", "file:///etc/passwd",
    "file:///proc/self/environ", "file:///FOLDERS/a.parquet", "file:///*", "file:///FOLDE*/a",
    # Encodings.
    "s3://bucket/open/%2e%2e/secret/x.parquet", "s3://bucket/open/%2E%2E%2Fsecret",
    "file:///FOLDER/%2e%2e/secret.parquet", "file:///FOLDER/..%2fsecret.parquet",
    "s3://bucket/open/%252e%252e/x", "s3://bucket/open/x.parquet%00", "s3://bucket/open/x\0.parquet",
    "s3://bucket/open/x\r\nHost: 127.0.0.1", "s3://bucket/open\\..\\secret", "s3://bucket\\open/x",
    "s3://bucket/open/\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/x",
    "s3://b\N{CYRILLIC SMALL LETTER U}cket/open/x", "s3://bucket/open/x y", "\ts3://bucket/open/x",
    "s3://bucket/open/x\n", "s3://bucket/open/" + "x" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("href", REFUSED)
def test_nothing_is_asked_of_what_is_not_listed(tmp_path, asked, href):
    seen, port = asked
    folder = tmp_path / "folder"
    folder.mkdir()
    pq.write_table(points(3, 1), folder / "a.parquet")
    pq.write_table(points(3, 1), tmp_path / "secret.parquet")
    sources = Sources(f"file://{folder}/,s3://bucket/open/", Bounds())
    href = href.replace("PORT", str(port)).replace("/FOLDER", str(folder))
    href = href.replace("/FOLDE*", f"{str(folder)[:-1]}*")
    assert is_url(href) or ":/" in href
    with pytest.raises(SourceNotAllowed):
        sources.dataset(href, Reading(), "observations")
    with pytest.raises(SinkNotAllowed):
        Sinks(f"file://{folder}/,s3://bucket/open/").output(href)
    assert seen == []


def test_without_a_list_nothing_is_read(tmp_path):
    pq.write_table(points(3, 1), tmp_path / "a.parquet")
    with pytest.raises(SourceNotAllowed, match="lists them with the setting sources: none"):
        Sources(None, Bounds()).dataset(f"file://{tmp_path}/a.parquet", Reading(), "references")


def test_what_is_listed_is_asked(asked):
    """The server of the other test would have seen a request."""
    with pytest.raises(SourceUnreadable, match=r"s3://bucket/open/x\.parquet cannot be read"):
        Sources("s3://bucket/open/", Bounds()).dataset(
            "s3://bucket/open/x.parquet", Reading(), "references"
        )
    assert any("/bucket" in path for path in asked[0])


@pytest.mark.parametrize("link", ["file", "folder", "pattern"])
def test_links_out_of_a_folder_are_refused(tmp_path, link):
    folder, secret = tmp_path / "open", tmp_path / "secret"
    folder.mkdir()
    secret.mkdir()
    pq.write_table(points(3, 1), secret / "a.parquet")
    (folder / "link.parquet").symlink_to(secret / "a.parquet")
    (folder / "link").symlink_to(secret)
    href = {"file": "link.parquet", "folder": "link", "pattern": "link/*"}[link]
    with pytest.raises(SinkNotAllowed, match="leads out of the folder"):
        Sinks(f"file://{folder}").output(f"file://{folder}/{href.rstrip('*')}")
    with pytest.raises(SourceNotAllowed, match="leads out of the folder"):
        Sources(f"file://{folder}", Bounds()).dataset(f"file://{folder}/{href}", Reading(), "x")


@pytest.mark.parametrize(
    "listed", ["/data", "s3://bucket/*", "http://host/", "s3://bucket/../x", "file://host/x"]
)
def test_what_cannot_be_listed(listed):
    with pytest.raises(ValueError, match=r"is no address|has a \*"):
        prefixes_of(listed)
    assert prefixes_of(" s3://bucket , file:///data ")[1] == address_of("file:///data/")


@pytest.fixture
def folder(tmp_path):
    """Files of seven rows each in folders by day, and some that are no part of the set."""
    table = points(42, 1, name=[f"n{i}" for i in range(42)])
    for i in range(6):
        day = tmp_path / f"year=2026/day={'__HIVE_DEFAULT_PARTITION__' if i == 5 else i // 2}"
        day.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(7 * i, 7), day / f"{i}.parquet", row_group_size=3)
    (tmp_path / "_temporary").mkdir()
    for other in ("_temporary/x.parquet", "year=2026/.x.parquet", "_SUCCESS", "notes.txt"):
        (tmp_path / other).write_text("no table")
    return tmp_path, table


def dataset(folder, below="", *, bounds=None, **reading):
    found = Sources(f"file://{folder}", bounds or Bounds())
    return found.dataset(f"file://{folder}{below}", Reading(**reading), "observations")


def test_a_folder_whose_folders_are_named_by_values(folder):
    path, table = folder
    found = dataset(path)
    assert (found.rows, found.invalid_rows, found.id) == (42, 0, "id")
    assert found.columns == ("id", "lat", "lon", "name", "year", "day")
    order, day = [*range(35), *range(35, 42)], [i // 14 for i in range(35)] + [None] * 7
    read = read_rows(found.file, 0, 42, list(found.columns))
    assert read.drop_columns(["year", "day"]).to_pydict() == table.take(order).to_pydict()
    assert read["year"].to_pylist() == [2026] * 42
    assert read["day"].to_pylist() == day


@pytest.mark.parametrize("start", [0, 1, 6, 7, 20, 41])
@pytest.mark.parametrize("stop", [1, 7, 8, 23, 42])
def test_any_range_of_rows(folder, start, stop):
    path, table = folder
    found = dataset(path)
    read = read_rows(found.file, start, max(start, stop), ["lon", "id", "lat"])
    expected = table.slice(start, max(0, stop - start)).select(["lon", "id", "lat"])
    assert read.to_pydict() == expected.to_pydict()


@pytest.mark.parametrize(
    ("below", "rows"),
    [
        ("/year=2026/day=0/0.parquet", 7),
        ("/year=2026/day=0/*.parquet", 14),
        ("/year=2026/day=*/1.parquet", 7),
        ("/year=2026/day=*", 42),
        ("/*/day=2/", 7),
        ("/", 42),
    ],
)
def test_patterns(folder, below, rows):
    assert dataset(folder[0], below).rows == rows


def test_nothing_there(folder):
    for below in ("/none", "/year=2026/*.parquet", "/none/*"):
        with pytest.raises(InvalidInput, match="there is no Parquet file"):
            dataset(folder[0], below)
    with pytest.raises(InvalidInput, match="not a readable Parquet file"):
        dataset(folder[0], "/notes.txt")


def test_columns_that_a_file_lacks_are_null(folder):
    path, table = folder
    other = table.select(["lon", "lat"]).append_column("more", pa.array([1.5] * 42))
    pq.write_table(other, path / "z.parquet")
    points_set = dataset(path)
    assert points_set.columns == ("id", "lat", "lon", "name", "year", "day", "more")
    rows = read_rows(points_set.file, 40, 44, list(points_set.columns)).to_pydict()
    assert rows["name"] == ["n40", "n41", None, None]
    assert rows["id"] == [*table["id"].to_pylist()[40:], None, None]
    assert (rows["year"], rows["day"]) == ([2026, 2026, None, None], [None] * 4)
    assert rows["more"] == [None, None, 1.5, 1.5]
    assert rows["lat"] == [*table["lat"].to_pylist()[40:], *table["lat"].to_pylist()[:2]]


def test_files_of_several_writers_are_one_table(folder):
    """One writes texts as large ones, another says that nothing is missing."""
    path, table = folder
    fields = [
        pa.field(one.name, pa.large_string() if one.type == pa.string() else one.type, False)
        for one in table.schema
    ]
    pq.write_table(table.cast(pa.schema(fields)), path / "z.parquet")
    found = dataset(path)
    rows = read_rows(found.file, 0, found.rows, table.column_names)
    assert rows.slice(rows.num_rows - table.num_rows).equals(table)
    assert rows.schema.equals(table.schema)


def test_bounds(folder):
    with pytest.raises(TooLarge, match="42 rows are more than the limit of 41"):
        dataset(folder[0], bounds=Bounds(rows=41))
    with pytest.raises(TooLarge, match="6 columns are more than the limit of 5"):
        dataset(folder[0], bounds=Bounds(columns=5))


def test_coordinates_become_float64(tmp_path):
    lat = pa.array([1.5, None, 3.0], pa.float32())
    pq.write_table(
        pa.table({"lat": lat, "lon": pa.array([1, 2, 3], pa.int16())}), tmp_path / "a.pq"
    )
    found = dataset(tmp_path, on_invalid="null")
    read = read_rows(found.file, 0, 3, ["lat", "lon"])
    np.testing.assert_array_equal(read["lat"].to_numpy(), [1.5, np.nan, 3])
    assert read.schema.types == [pa.float64()] * 2
    degrees = Coordinates(found).of(np.array([2, -1, 0]))
    np.testing.assert_array_equal(degrees, [[3, np.nan, 1], [3, np.nan, 1.5]])


def test_what_columns_take(folder):
    found = dataset(folder[0])
    sizes = column_sizes(found.file)
    assert set(sizes) == set(found.columns)
    assert sizes["lat"].encoded >= 42 * 8
    assert found.width(["lat", "id"]).total == 42 * 16
    assert found.width(["name"]).row > 2


def test_rows_that_are_no_points_are_named(tmp_path):
    table = points(10, 1).to_pandas()
    table.loc[8, "lat"] = 95.5
    pq.write_table(points(4, 2), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pandas(table), tmp_path / "b.parquet", row_group_size=5)
    file = dataset(tmp_path).file
    assert read_rows(file, 0, 12, ["lat", "lon"]).num_rows == 12
    with pytest.raises(SourceFailed, match=r"b\.parquet: row group 1, row 3 of it \(row 8 of the"):
        read_rows(file, 2, 14, ["lat", "lon"])
    kept = read_rows(dataset(tmp_path, on_invalid="null").file, 2, 14, ["lat", "lon"])
    assert kept.num_rows == 12


CHANGES = {
    "written again": lambda path: pq.write_table(points(7, 9), path),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "replaced": lambda path: (
        path.with_name("x").write_bytes(b"new"),
        path.with_name("x").replace(path),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_has_changed_is_named(folder, change):
    path, _ = folder
    found = dataset(path)
    read_rows(found.file, 0, 42, ["lat", "lon"])
    CHANGES[change](path / "year=2026/day=1/2.parquet")
    with pytest.raises(SourceFailed, match=r"day=1/2\.parquet: it has changed since"):
        read_rows(found.file, 0, 42, ["lat", "lon"])
    assert dataset(path, "/year=2026/day=0").sha256 != found.sha256
    (path / "year=2026/day=1/2.parquet").unlink()
    with pytest.raises(SourceFailed, match=r"day=1/2\.parquet: .* is gone"):
        read_rows(found.file, 0, 42, ["lat", "lon"])


@pytest.mark.parametrize("fault", ["refuses", "ends in the middle", "is silent", "is gone"])
def test_a_store_that_fails_is_told_with_the_file(tmp_path, monkeypatch, fault):
    # Of each of three attempts.
    monkeypatch.setitem(storage.SETTINGS["client_options"], "read_timeout", timedelta(seconds=1))
    pq.write_table(points(70_000, 1), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    faults, over = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        """An object store with one object, as far as a reader sees it."""

        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(content, 200)

        def do_GET(self):
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            whole = f"bytes {first}-{last}/{len(content)}"
            body = content[int(first) : int(last) + 1]
            self.answer(body, 206, **{"Content-Range": whole})

        def answer(self, body, status, **headers):
            if "is silent" in faults:
                over.wait()
            if "refuses" in faults:
                self.send_error(403)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Tue, 24 Nov 2026 00:00:00 GMT")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.close_connection = bool(faults)
                self.wfile.write(body[: len(body) // 2] if faults else body)

        def log_message(self, *_):
            pass

    with _served(Handler) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        storage.open_store.cache_clear()
        sources = Sources("s3://bucket/", Bounds())
        found = sources.dataset("s3://bucket/a.parquet", Reading(), "observations")
        assert read_rows(found.file, 0, 70_000, ["lat", "lon"]).num_rows == 70_000
        faults.append(fault)
        if fault != "is gone":
            with pytest.raises(SourceFailed, match=r"s3://bucket/a\.parquet: it cannot be read"):
                read_rows(found.file, 0, 70_000, ["lat", "lon"])
        over.set()
    with pytest.raises(SourceFailed, match=r"s3://bucket/a\.parquet: it cannot be read"):
        read_rows(found.file, 0, 70_000, ["lat", "lon"])
    storage.open_store.cache_clear()


@pytest.mark.parametrize(
    ("suffix", "pages", "told"),
    [(".parquet", 11, "more than 10000 files"), (".csv", 101, "more than 100000 files")],
)
def test_a_prefix_of_too_many_objects_is_not_listed_to_its_end(monkeypatch, suffix, pages, told):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        """An object store whose list has no end."""

        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked.append(self.path)
            key = "<Key>open/{}{}</Key><Size>9</Size><ETag>&quot;1&quot;</ETag>"
            key += "<LastModified>2026-11-24T00:00:00.000Z</LastModified>"
            begin = 1000 * len(asked)
            keys = (key.format(i, suffix) for i in range(begin, begin + 1000))
            body = "<ListBucketResult><IsTruncated>true</IsTruncated>"
            body += f"<NextContinuationToken>{begin}</NextContinuationToken>"
            body += "".join(f"<Contents>{one}</Contents>" for one in keys) + "</ListBucketResult>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_HEAD(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with _served(Handler) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        storage.open_store.cache_clear()
        with pytest.raises(TooLarge, match=told):
            Sources("s3://bucket/", Bounds()).dataset("s3://bucket/open/", Reading(), "x")
        storage.open_store.cache_clear()
    # One more may be on its way.
    assert pages <= len(asked) <= pages + 2


@pytest.fixture
def web(tmp_path, monkeypatch):
    """Files behind https, one of them a set of points."""
    with serving(tmp_path) as files:
        monkeypatch.setenv("SSL_CERT_FILE", str(files.certificate))
        storage._client.cache_clear()
        sink = pa.BufferOutputStream()
        pq.write_table(points(70_000, 1), sink, row_group_size=20_000)
        files.content["/open/a.parquet"] = sink.getvalue().to_pybytes()
        files.content["/secret/a.parquet"] = files.content["/open/a.parquet"]
        yield files
        storage._client().close()
        storage._client.cache_clear()


def over_https(web, path="/open/a.parquet", listed="/open/"):
    return Sources(web.address + listed, Bounds()).dataset(
        web.address + path, Reading(), "observations"
    )


def test_a_file_over_https(web):
    found = over_https(web)
    assert (found.rows, found.columns) == (70_000, ("id", "lat", "lon"))
    assert found.file.size_bytes == len(web.content["/open/a.parquet"])
    web.asked.clear()
    read = read_rows(found.file, 30_000, 50_000, ["id", "lon"])
    assert (
        read.to_pydict()
        == points(70_000, 1).slice(30_000, 20_000).select(["id", "lon"]).to_pydict()
    )
    # Of what is read, not of the file.
    ranges = [range.removeprefix("bytes=").split("-") for _, range in web.asked]
    asked = sum(int(last) - int(first) + 1 for first, last in ranges)
    assert asked < 0.6 * found.file.size_bytes


def test_nothing_is_asked_of_a_server_but_what_is_listed(web):
    port = web.address.rpartition(":")[2]
    for path in ("/secret/a.parquet", "/opened/a.parquet", "", "/", "/open/../secret/a.parquet",
                 "/open/%2e%2e/secret/a.parquet", "/open//a.parquet", "/open/a.parquet?x=1",
                 "/open/*.parquet", "/open/a.parquet#x", "/open\\a.parquet"):  # fmt: skip
        with pytest.raises(SourceNotAllowed):
            over_https(web, path)
    own = f"127.0.0.1:{port}/open/a.parquet"
    for href in (f"https://a@{own}", f"https://127.0.0.1:{port}@169.254.169.254/open/a.parquet",
                 f"https://127.0.0.1.:{port}/open/a.parquet", f"https://127.1:{port}/open/a.parquet",
                 f"https://127.0.0.1:0{port}/open/a.parquet", "https://127.0.0.1/open/a.parquet",
                 f"HTTPS://{own}", f"http://{own}", "https:///open/a", "https://[::1]/a",
                 "https://169.254.169.254/a", "https://metadata.google.internal/a"):  # fmt: skip
        with pytest.raises(SourceNotAllowed):
            Sources(f"{web.address}/open/", Bounds()).dataset(href, Reading(), "observations")
    assert web.asked == []
    with pytest.raises(InvalidInput, match="there is no Parquet file"):
        over_https(web, "/open/none.parquet")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("leads elsewhere", "a redirect, which is not followed"),
        ("refuses", "answers 403"),
        ("sends no ranges", "sends no ranges"),
        ("packs", "answers 206"),
        ("tells no version", "neither ETag nor Last-Modified"),
        ("sends another range", "the server sends bytes"),
        ("ends in the middle", "RemoteProtocolError"),
    ],
)
def test_a_server_that_misbehaves_is_told_with_the_file(web, fault, told):
    found = over_https(web)
    web.fault = fault
    address = f"{web.address}/open/a.parquet"
    with pytest.raises(SourceUnreadable, match=rf"{address} cannot be read.*{told}"):
        over_https(web)
    with pytest.raises(SourceFailed, match=rf"{address}: it cannot be read: .*{told}"):
        read_rows(found.file, 0, 70_000, ["lat"])
    assert all(path == "/open/a.parquet" for path, _ in web.asked)


def test_a_file_that_changes_on_a_server_is_named(web):
    found = over_https(web)
    sink = pa.BufferOutputStream()
    pq.write_table(points(70_000, 2), sink, row_group_size=20_000)
    before, after = web.content["/open/a.parquet"], sink.getvalue().to_pybytes()
    web.content["/open/a.parquet"] = after
    with pytest.raises(SourceFailed, match=r"/open/a\.parquet: it has changed since"):
        read_rows(found.file, 0, 70_000, ["lat", "lon"])
    # While it is read, too.
    web.content["/open/a.parquet"] = before
    with storage.HttpsFile(found.file.files[0].path) as file:
        assert file.read(4) == b"PAR1"
        web.content["/open/a.parquet"] = after
        with pytest.raises(OSError, match="it has changed meanwhile"):
            file.read(4)
    del web.content["/open/a.parquet"]
    with pytest.raises(SourceFailed, match=r"/open/a\.parquet: .* is gone"):
        read_rows(found.file, 0, 70_000, ["lat", "lon"])
