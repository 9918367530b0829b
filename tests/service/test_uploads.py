"""Uploads in several requests: they go on after a break, wherever it comes, and end in time."""

import base64
import hashlib
import io
import os
import socket
import time

import pytest
from tusclient.client import TusClient

from georesolve.service.clock import new_id, now
from georesolve.service.database.store import Store, admit_any
from georesolve.service.errors import NoSuchUpload
from georesolve.service.uploads.contents import Files
from georesolve.service.uploads.resumable import ResumableUploads
from tests.conftest import (
    NO_CLUSTER,
    points,
    running_service,
    wait_until,
)
from tests.service.test_jobs import parquet
from tests.service.test_keys import as_holder, new_key

OBSERVATIONS, REFERENCES = points(300, 91), points(40, 92)
BYTES = {"Content-Type": "application/offset+octet-stream"}
CONTENT = parquet(OBSERVATIONS)


def begin(client, content, **headers):
    """Begin an upload; returns its address."""
    answer = client.post("/uploads", headers={"Upload-Length": str(len(content)), **headers})
    assert answer.status_code == 201, answer.text
    assert answer.headers["upload-offset"] == "0"
    assert answer.headers["location"].endswith(f"/uploads/{answer.json()['id']}")
    return answer.headers["location"]


def send(client, address, offset, content, **headers):
    return client.patch(
        address, content=content, headers={"Upload-Offset": str(offset), **BYTES, **headers}
    )


def offset_of(client, address):
    answer = client.head(address)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["tus-resumable"] == "1.0.0"
    return int(answer.headers["upload-offset"])


def finished(client, content, **headers):
    """A finished upload, as a text."""
    address = begin(client, content, **headers)
    assert send(client, address, 0, content).status_code == 204
    return f"upload:{address.rpartition('/')[2]}"


def problem(answer):
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def text(**parts):
    """Parts of a form that are texts."""
    return {name: (None, value) for name, value in parts.items()}


def test_an_upload_in_pieces_is_resolved_as_a_file_is(service):
    address = begin(service, CONTENT)
    for start in range(0, len(CONTENT), 3000):
        assert offset_of(service, address) == start
        piece = CONTENT[start : start + 3000]
        answer = send(service, address, start, piece)
        assert answer.status_code == 204
        assert answer.headers["upload-offset"] == str(start + len(piece))
        assert answer.headers["tus-resumable"] == "1.0.0"
    info = service.get(address).json()
    assert (info["offset"], info["size_bytes"]) == (len(CONTENT), len(CONTENT))
    name = f"upload:{info['id']}"
    files = {"observations": ("o", CONTENT), "references": ("r", parquet(REFERENCES))}
    expected = service.post("/resolve", files=files).content
    references = finished(service, parquet(REFERENCES))
    # As often as it is wanted: it stays until it is removed.
    for _ in range(2):
        answer = service.post("/resolve", files=text(observations=name, references=references))
        assert answer.content == expected
    inputs = {"inputs": {"observations": name, "references": references}}
    answer = service.post("/processes/nearest/execution", json=inputs)
    assert answer.content == expected
    answer = service.post(
        "/nearest",
        json={"observations": name, "references": {"value": references}},
        headers={"Accept": "application/vnd.apache.parquet"},
    )
    assert answer.content == expected
    dataset = service.post("/datasets", files=text(file=references))
    assert dataset.json()["rows"] == 40
    assert (
        service.post("/datasets", content=parquet(REFERENCES)).json()["id"]
        == (dataset.json()["id"])
    )
    assert service.delete(address).status_code == 204
    assert problem(service.get(address)) == (404, "no-such-upload")
    answer = service.post("/resolve", files=text(observations=name, references=references))
    assert problem(answer) == (404, "no-such-upload")


def test_a_client_of_others_uploads_and_goes_on(service):
    client = TusClient(f"{service.base_url}/uploads")
    about = {"filename": "sites.parquet"}
    first = client.uploader(file_stream=io.BytesIO(CONTENT), chunk_size=2000, metadata=about)
    first.upload_chunk()
    second = client.uploader(file_stream=io.BytesIO(CONTENT), chunk_size=2000, url=first.url)
    assert second.offset == 2000
    second.upload()
    id = second.url.rpartition("/")[2]
    assert service.post("/datasets", files=text(file=f"upload:{id}")).json()["rows"] == 300


def test_what_a_client_says_of_its_file_tells_the_format(service):
    tsv = b"lat\tlon\n52.5\t13.4\n"
    name, kind = (
        base64.b64encode(one).decode() for one in (b"o.tsv", b"text/tab-separated-values")
    )
    about = f"filename {name},filetype {kind}"
    address = begin(service, tsv, **{"Upload-Metadata": about})
    assert service.head(address).headers["upload-metadata"] == about
    send(service, address, 0, tsv)
    id = address.rpartition("/")[2]
    assert service.post("/datasets", files=text(file=f"upload:{id}")).json()["rows"] == 1


def test_only_the_right_bytes_are_appended(service):
    address = begin(service, CONTENT)
    assert send(service, address, 0, CONTENT[:1000]).status_code == 204
    wrong = send(service, address, 0, CONTENT[:1000])
    assert problem(wrong) == (409, "wrong-offset")
    assert wrong.headers["upload-offset"] == "1000"
    assert wrong.headers["tus-resumable"] == "1.0.0"
    assert problem(send(service, address, 2000, CONTENT[2000:])) == (409, "wrong-offset")
    assert problem(send(service, address, 1000, CONTENT)) == (413, "too-large")
    other = {"Content-Digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"}
    assert problem(send(service, address, 1000, CONTENT[1000:], **other)) == (
        400,
        "invalid-request",
    )
    assert offset_of(service, address) == 1000
    id = address.rpartition("/")[2]
    unfinished = service.post("/datasets", files=text(file=f"upload:{id}"))
    assert problem(unfinished) == (409, "upload-incomplete")
    assert f"1000 of {len(CONTENT)} bytes" in unfinished.json()["detail"]
    assert problem(
        send(service, address, 1000, CONTENT[1000:], **{"Content-Type": "text/csv"})
    ) == (415, "unsupported-format")


def test_an_upload_with_another_digest_is_refused(service):
    digest = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
    right = {"Repr-Digest": f"sha-256=:{digest}:"}
    good = service.post("/datasets", files=text(file=finished(service, CONTENT, **right)))
    assert good.is_success
    damaged = CONTENT[:-20] + b"x" + CONTENT[-19:]
    refused = service.post("/datasets", files=text(file=finished(service, damaged, **right)))
    assert problem(refused) == (400, "invalid-request")
    assert f"Repr-Digest says sha-256=:{digest}:" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        ({}, 400, "Upload-Length is missing"),
        ({"Upload-Length": "-1"}, 400, "Upload-Length is '-1'"),
        ({"Upload-Length": "0"}, 400, "an empty file is no table"),
        ({"Upload-Length": str(9 << 30)}, 413, f"the limit is {8 << 30} bytes"),
        ({"Upload-Length": "5", "Upload-Metadata": "filename ü"}, 400, "Upload-Metadata is"),
        ({"Upload-Length": "5", "Upload-Metadata": "n" * 5000}, 400, "may have 4096"),
        ({"Upload-Length": "5", "Tus-Resumable": "0.2.2"}, 412, "may be 1.0.0"),
    ],
)
def test_what_cannot_begin_is_told(service, headers, status, told):
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    answer = service.post("/uploads", headers=raw)
    assert answer.status_code == status
    assert told in answer.json()["detail"]
    assert answer.headers["tus-resumable"] == "1.0.0"


def test_what_the_service_knows_of_tus(service):
    answer = service.options("/uploads")
    assert answer.status_code == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert answer.headers["tus-extension"] == "creation,termination,expiration"
    assert answer.headers["tus-max-size"] == str(8 << 30)
    assert set(service.put("/uploads").headers["allow"].split(", ")) == {"POST"}


def opened_patch(service, address, offset, length, content):
    """A connection on which a PATCH has begun, of which more is to come."""
    url = service.base_url
    connection = socket.create_connection((url.host, url.port), timeout=60)
    path = address.partition(str(url.port))[2]
    head = (
        f"PATCH {path} HTTP/1.1\r\nHost: {url.host}\r\nUpload-Offset: {offset}\r\n"
        f"Content-Type: {BYTES['Content-Type']}\r\nContent-Length: {length}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def test_one_request_at_a_time_sends_and_what_came_of_it_stays(service):
    content = os.urandom(3 << 20)
    address = begin(service, content)
    first = opened_patch(service, address, 0, len(content), content[: 2 << 20])
    wait_until(lambda: offset_of(service, address) > 0)
    second = send(service, address, offset_of(service, address), b"x")
    assert problem(second) == (409, "upload-in-use")
    first.close()

    def goes_on():
        offset = offset_of(service, address)
        return send(service, address, offset, content[offset:]).status_code == 204

    # As soon as the service has seen that the first has gone.
    wait_until(goes_on)
    assert offset_of(service, address) == len(content)
    id = address.rpartition("/")[2]
    folder = service.log.with_suffix("") / "uploads"
    assert (folder / id).read_bytes() == content


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service with two holders and little room, and no cluster."""
    data_dir = tmp_path_factory.mktemp("uploads") / "data"
    keys = [new_key(data_dir, name) for name in ("ann", "ben")]
    flags = [*NO_CLUSTER, "--key-bytes", 5000, "--key-jobs", 3, "--fronts", 2]
    with running_service(data_dir, *flags, ready=False) as client:
        client.data_dir = data_dir
        ann, ben = (as_holder(client, key) for key in keys)
        with ann, ben:
            yield client, ann, ben


def test_uploads_of_others_are_not_there(guarded):
    _, ann, ben = guarded
    address = begin(ann, b"x" * 100)
    assert problem(ben.get(address)) == (404, "no-such-upload")
    assert problem(send(ben, address, 0, b"x")) == (404, "no-such-upload")
    assert problem(ben.delete(address)) == (404, "no-such-upload")
    id = address.rpartition("/")[2]
    assert problem(ben.post("/datasets", files=text(file=f"upload:{id}"))) == (
        404,
        "no-such-upload",
    )
    # Any front takes any piece.
    for offset in range(20):
        assert send(ann, address, offset, b"y", Connection="close").status_code == 204
    assert offset_of(ann, address) == 20
    assert ann.delete(address).status_code == 204


def test_uploads_count_as_what_a_key_keeps(guarded):
    _, ann, ben = guarded
    address = begin(ann, b"x" * 4000)
    assert ann.get("/datasets").json()["used_bytes"] == 4000
    refused = ann.post("/uploads", headers={"Upload-Length": "1001"})
    assert problem(refused) == (507, "storage-full")
    more = [begin(ann, b"x") for _ in range(2)]
    refused = ann.post("/uploads", headers={"Upload-Length": "1"})
    assert problem(refused) == (429, "too-many-uploads")
    assert begin(ben, b"x" * 5000)
    for one in (address, *more):
        assert ann.delete(one).status_code == 204
    assert ann.get("/datasets").json()["used_bytes"] == 0


def test_an_upload_that_cannot_go_keeps_no_other(tmp_path, monkeypatch, caplog):
    (tmp_path / "datasets").mkdir()
    uploads = ResumableUploads(Store(tmp_path), hours=-1)
    stuck, other = (uploads.create(10, "", "", admit_any).id for _ in range(2))
    appended = Files.appended

    def refuse(self, id, offset):
        if id == stuck:
            raise OSError("no file of the folder can be opened")
        return appended(self, id, offset)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "appended", refuse)
        assert uploads.expire() == [other]
    assert f"the upload {stuck} stays for now" in caplog.text
    assert uploads.expire() == [stuck]


def test_an_upload_that_nobody_touches_goes(tmp_path):
    (tmp_path / "datasets").mkdir()
    store = Store(tmp_path)
    uploads = ResumableUploads(store, hours=1)
    old, young, open_one = (uploads.create(10, "", "", admit_any) for _ in range(3))
    for row in (old, open_one):
        store.uploads.prolong(row.id, now(-1))
    stray = store.uploads_folder / new_id()
    for path, age in ((stray, 7200), (store.uploads_folder / new_id(), 0)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    with uploads.opened(open_one.id, 0) as (_, file):
        file.write(b"x")
        assert uploads.expire() == [old.id]
        assert uploads.keep(open_one.id).offset == 1
    assert uploads.expire() == []
    with pytest.raises(NoSuchUpload):
        uploads.get(old.id)
    assert uploads.get(young.id).offset == 0
    left = sorted(path.name for path in store.uploads_folder.iterdir())
    assert stray.name not in left
    assert len(left) == 3, "of a file without a row that is young an upload may be made"
    assert not (store.uploads_folder / old.id).exists()
    store.close()
