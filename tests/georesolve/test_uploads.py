"""Files on their way to a service: what breaks is sent again."""

import functools

import anyio
import pyarrow.parquet as pq
import pytest

from georesolve.cli import main
from georesolve.client import AsyncClient, Client, ServiceRefused
from tests.conftest import points
from tests.lines import line_to

REFERENCES = points(50, 96)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file that is on its way for a while."""
    path = tmp_path_factory.mktemp("large") / "sites.parquet"
    pq.write_table(points(260_000, 97), path)
    return path


@pytest.fixture(scope="module")
def dataset(service, large):
    """The same as a dataset."""
    with large.open("rb") as file:
        return service.post("/datasets", content=file).json()


def test_an_upload_that_is_cut_is_sent_again(service, large, dataset):
    with line_to(service) as line, Client(line.address) as client:
        line.up += [2_000_000, 1_000_000]
        assert client.register(large).sha256 == dataset["sha256"]
        assert (line.up, line.connections) == ([], 3)


def test_the_async_client_sends_again_too(service, large, dataset):
    async def register(address):
        async with AsyncClient(address) as client:
            return await client.register(large)

    with line_to(service) as line:
        line.up += [2_000_000]
        assert anyio.run(functools.partial(register, line.address)).sha256 == dataset["sha256"]
        assert line.up == []


def test_the_command_sends_again_too(service, large, tmp_path):
    pq.write_table(REFERENCES, tmp_path / "r.parquet")
    arguments = ["nearest", str(large), str(tmp_path / "r.parquet"), "--quiet", "-o"]
    with line_to(service) as line:
        line.up += [2_000_000]
        out = str(tmp_path / "there.parquet")
        assert main([*arguments, out, "--server", line.address]) == 0
        assert line.up == []
    assert main([*arguments, str(tmp_path / "here.parquet")]) == 0
    files = (tmp_path / f"{name}.parquet" for name in ("here", "there"))
    assert len({file.read_bytes() for file in files}) == 1


def test_bytes_that_changed_on_the_way_are_refused(service, large):
    content = large.read_bytes()
    middle = content[len(content) // 2 :][:16]
    with line_to(service) as line, Client(line.address) as client:
        line.change = lambda piece: piece.replace(middle, bytes(16))
        with pytest.raises(ServiceRefused, match=r"Content-Digest says sha-256=.*: send it again"):
            client.register(large)
