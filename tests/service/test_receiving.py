"""Uploads: however they are cut they arrive whole, or are refused as early as can be."""

import asyncio
import base64
import gzip
import hashlib
import itertools
import json
import socket
import tempfile
import uuid
from pathlib import Path

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from georesolve.service.errors import InvalidRequest
from georesolve.service.receiving.uploads import receive_form
from tests.conftest import points, running_service, wait_until
from tests.service.test_jobs import PARQUET, files_of, parquet

BOUNDARY = "a-b"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
NAMES = ["observations", "references"]


def part(name, content, filename=None):
    about = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{about}\r\n'
    return f"{head}Content-Type: text/csv\r\n\r\n".encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def received(pieces, folder, **headers):
    """What comes of a form that arrives in pieces."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    coming = iter(messages)

    async def next_message():
        return next(coming)

    headers = {"content-type": FORM, **headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "headers": raw}, next_message)
    return asyncio.run(receive_form(request, folder, NAMES, ["k"]))


# Contents that look like the end of a part, or of the form.
CONTENTS = st.lists(st.sampled_from([b"x", b"\r\n", b"--", b"a-b", b"\r\n--a-", b"\0" * 9])).map(
    b"".join
)


@given(CONTENTS, CONTENTS, st.lists(st.integers(0, 400), max_size=6))
def test_a_form_may_be_cut_anywhere(observations, references, cuts):
    if f"\r\n--{BOUNDARY}".encode() in b"\r\n" + observations + b"\r\n" + references:
        return
    body = part("observations", observations, "o.csv") + part("k", b"3") + part("k", b"")
    body += part("references", references, "r") + END
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(places)]
    with tempfile.TemporaryDirectory() as folder:
        form = received(pieces, Path(folder))
        assert form.fields == [("k", "3"), ("k", "")]
        assert form.parts["observations"].path.read_bytes() == observations
        assert form.parts["references"].path.read_bytes() == references
        told = form.parts["observations"]
        assert (told.media_type, told.name, told.file) == ("text/csv", "o.csv", "observations")


def test_texts_and_large_files(tmp_path):
    large = bytes(range(256)) * 20_000
    body = part("observations", large, "o") + part("references", b"dataset:1") + END
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    parts = received(pieces, tmp_path).parts
    assert parts["references"] == "dataset:1"
    assert parts["observations"].path.read_bytes() == large
    assert parts["observations"].seconds > 0


def with_headers(lines):
    """A form whose first part has further headers."""
    body = part("observations", b"1", "o") + part("references", b"2", "o") + END
    return body.replace(b"Content-Disposition", lines + b"Content-Disposition", 1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (part("observations", b"1", "o") + END, "it has 'observations'"),
        (END, "it has none"),
        (part("observations", b"1", "o") + part("observations", b"2", "o"), "once each"),
        (part("observations", b"1", "o") + part("other", b"2", "o"), "'observations', 'other'"),
        (part("observations", b"1", "o") + part("references", b"2", "o"), "breaks off"),
        (part("observations", b"1", "o") + part("references", b"2", "o")[:-1], "breaks off"),
        (part("observations", b"1" * 1001), "a text of more than 1000 bytes"),
        (part("k", b"1" * 65_536), "more than 65536 bytes"),
        (part("k", b"") * 65_538, "more than 65536 bytes"),
        (part("k", b"1", "k"), "k: an option is a text"),
        (b"lat,lon\n1,2\n", "cannot be read"),
        (part("observations", b"1", "o").replace(b"-Disposition", b""), "it has ''"),
        (with_headers(b"A: b\r\n" * 100), "cannot be read"),
        (with_headers(b"A: " + b"b" * 60_000 + b"\r\n"), "cannot be read"),
    ],
)
def test_forms_that_are_refused(tmp_path, body, words):
    with pytest.raises(InvalidRequest, match=words):
        received([body], tmp_path)


@pytest.mark.parametrize("media_type", ["multipart/form-data", "multipart/form-data; boundary="])
def test_a_form_needs_a_boundary(tmp_path, media_type):
    with pytest.raises(InvalidRequest, match="boundary"):
        received([END], tmp_path, **{"content-type": media_type})


def digest(algorithm, content):
    value = base64.b64encode(hashlib.new(algorithm.replace("-", ""), content).digest()).decode()
    return f"{algorithm}=:{value}:"


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_a_digest_is_checked(service, algorithm):
    content = parquet(points(5, 1))
    told = f"md5=:AAAA:, {digest(algorithm, content)}"
    headers = {"Content-Type": PARQUET, "Content-Digest": told}
    assert service.post("/datasets", content=content, headers=headers).is_success
    refused = service.post("/datasets", content=content + b"x", headers=headers)
    assert refused.status_code == 400
    assert f"Content-Digest says {algorithm}=:" in refused.json()["detail"]


def open_request(client, path, media_type, body, length=None):
    """A connection on which a request has begun, and its body not ended."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port), timeout=30)
    framing = f"Content-Length: {length}" if length else "Transfer-Encoding: chunked"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\n{framing}\r\n"
    chunk = body if length else f"{len(body):x}\r\n".encode() + body + b"\r\n"
    connection.sendall(head.encode() + b"\r\n" + chunk)
    return connection


def answer_on(connection):
    """The answer to a request whose body has not ended."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(65_536)
    return answer.decode()


UPLOADS = [
    ("/datasets", PARQUET, b""),
    ("/datasets", FORM, part("file", b"", "f.parquet")[:-2]),
    ("/resolve", FORM, part("observations", b"lat", "o") + part("references", b"", "r")[:-2]),
]


@pytest.mark.parametrize(("path", "media_type", "head"), UPLOADS, ids=["body", "file", "form"])
def test_an_upload_that_is_cut_leaves_nothing(service, path, media_type, head):
    """It goes straight into the folder of the request, and with that."""
    incoming = files_folder(service)
    connection = open_request(service, path, media_type, head + bytes(3 << 20), length=1 << 30)
    wait_until(lambda: sum(file.stat().st_size for file in incoming.rglob("*.received")) > 1 << 20)
    connection.close()
    wait_until(lambda: not list(incoming.glob("*/*")))


def files_folder(client):
    arguments = client.process.args
    return Path(arguments[arguments.index("--data-dir") + 1]) / "incoming"


@pytest.mark.parametrize(("path", "media_type", "head"), UPLOADS, ids=["body", "file", "form"])
def test_too_much_is_refused_while_it_comes(small, path, media_type, head):
    body = head + uuid.uuid4().bytes * 100_000
    with open_request(small, path, media_type, body) as connection:
        answer = answer_on(connection)
    assert answer.startswith("HTTP/1.1 413")
    assert "more than the limit of 1000000 bytes, and no more are taken" in answer
    wait_until(lambda: not list(files_folder(small).glob("*/*")))
    assert files_of(small) == set()


def test_too_much_is_refused_before_it_comes(small):
    with open_request(small, "/datasets", PARQUET, b"PAR1", length=1_000_001) as connection:
        answer = answer_on(connection)
    assert answer.startswith("HTTP/1.1 413")
    assert "the body has 1000001 bytes, and the limit is 1000000 bytes" in answer


@pytest.fixture(scope="module")
def small(tmp_path_factory, shared_cluster):
    """A service that takes a megabyte."""
    data_dir = tmp_path_factory.mktemp("small") / "data"
    flags = [*shared_cluster, "--upload-bytes", 1_000_000]
    with running_service(data_dir, *flags) as client:
        yield client


def test_a_form_with_a_wrong_part_is_refused_before_that_comes(service):
    body = part("observation", b"lat,lon\n", "o.csv")[:-2]
    with open_request(service, "/resolve", FORM, body) as connection:
        answer = answer_on(connection)
    assert answer.startswith("HTTP/1.1 400")
    assert "it has 'observation'" in answer


ROWS = b"lat,lon\n" + b"1.5,2.5\n" * 5
PACKED = gzip.compress(ROWS[:20]) + gzip.compress(ROWS[20:])


def test_a_file_packed_with_gzip(service):
    """As a file of its own, of a form, or of a body that says so: the same dataset."""
    digest_of_sent = {"Content-Digest": digest("sha-256", PACKED)}
    encoded = {"Content-Encoding": "gzip", "Content-Type": "text/csv", **digest_of_sent}
    answers = [
        service.post("/datasets", files={"file": ("points.csv", ROWS)}),
        service.post("/datasets", files={"file": ("points.csv.GZ", PACKED, "application/gzip")}),
        service.post("/datasets", content=PACKED, headers={"Content-Type": "text/csv"}),
        service.post("/datasets", content=PACKED, headers=encoded),
        service.post("/datasets", content=gzip.compress(PACKED), headers={
            "Content-Encoding": "x-gzip", "Content-Type": "text/csv"
        }),
    ]  # fmt: skip
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200]
    assert service.delete(answers[0].headers["location"]).status_code == 204
    assert not list(files_folder(service).glob("*/*"))


def test_forms_and_json_packed_with_gzip(service):
    body = part("observations", ROWS, "o.csv") + part("references", PACKED, "r.csv.gz") + END
    headers = {"Content-Type": FORM, "Content-Encoding": "gzip"}
    answer = service.post("/resolve", content=gzip.compress(body), headers=headers)
    assert answer.status_code == 200, answer.text
    points = {"lat": [1.0], "lon": [2.0]}
    body = json.dumps({"observations": points, "references": points}).encode()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    for sent, status in (
        (gzip.compress(body), 200),
        (gzip.compress(body)[:-4], 400),
        (body, 400),
        (gzip.compress(b" " * (17 << 20) + body), 413),
    ):
        answer = service.post("/nearest", content=sent, headers=headers)
        assert answer.status_code == status, answer.text
    answer = service.post("/nearest", content=body, headers={**headers, "Content-Encoding": "br"})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip")


def test_a_packed_file_is_bounded_by_what_it_unpacks_to(small):
    bomb = gzip.compress(b"lat,lon\n" + b"1.5,2.5\n" * 200_000)
    assert len(bomb) < 10_000
    for headers in ({}, {"Content-Encoding": "gzip"}):
        headers = {"Content-Type": "text/csv", **headers}
        answer = small.post("/datasets", content=bomb, headers=headers)
        assert answer.status_code == 413
        assert "unpacks to more than the limit of 1000000 bytes" in answer.json()["detail"]
    for bad in (PACKED[:-5], PACKED[:12] + b"x" * 9):
        answer = small.post("/datasets", content=bad, headers={"Content-Type": "text/csv"})
        assert answer.status_code == 400
        assert "cannot be unpacked with gzip" in answer.json()["detail"]
    wait_until(lambda: not list(files_folder(small).glob("*/*")))
    assert files_of(small) == set()
