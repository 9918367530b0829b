"""Large files on their way to a service: what breaks goes on where it stopped."""

import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anyio
import pyarrow.parquet as pq
import pytest

from georesolve.client import AsyncClient, Client, ServiceRefused
from georesolve.client.uploads import RESUMED_BYTES
from georesolve.commands import main
from tests.conftest import (
    NO_CLUSTER,
    free_port,
    kill_with_children,
    points,
    running_service,
    wait_until,
)
from tests.lines import line_to

REFERENCES = points(50, 96)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file that is sent ahead of its request."""
    path = tmp_path_factory.mktemp("large") / "sites.parquet"
    pq.write_table(points(1_040_000, 97), path)
    assert path.stat().st_size > RESUMED_BYTES
    return path


@pytest.fixture(scope="module")
def dataset(service, large):
    """The same as a dataset, which came in one piece."""
    with large.open("rb") as file:
        return service.post("/datasets", content=file).json()


def uploads_at(service):
    return list((service.log.with_suffix("") / "uploads").iterdir())


def counted(line):
    """Count the bytes that are carried over a line both ways."""
    total = [0]

    def count(piece):
        total[0] += len(piece)
        return piece

    line.change = count
    return total


def test_an_upload_that_is_cut_goes_on_where_it_stopped(service, large, dataset):
    before = uploads_at(service)
    with line_to(service) as line, Client(line.address) as client:
        total = counted(line)
        line.up += [6_000_000, 7_000_000]
        assert client.register(large).sha256 == dataset["sha256"]
        assert line.up == []
        assert total[0] < 1.1 * large.stat().st_size
        line.up += [9_000_000]
        assert client.register(large, name="large").names[0] == "large"
        assert line.up == []
    assert uploads_at(service) == before


def test_the_async_client_goes_on_too(service, large, dataset):
    async def register(address):
        async with AsyncClient(address) as client:
            return await client.register(large)

    with line_to(service) as line:
        line.up += [9_000_000]
        assert anyio.run(functools.partial(register, line.address)).sha256 == dataset["sha256"]
        assert line.up == []


def test_the_command_goes_on_too(service, large, tmp_path):
    pq.write_table(REFERENCES, tmp_path / "r.parquet")
    arguments = ["nearest", str(large), str(tmp_path / "r.parquet"), "--quiet", "-o"]
    with line_to(service) as line:
        line.up += [9_000_000]
        out = str(tmp_path / "there.parquet")
        assert main([*arguments, out, "--server", line.address]) == 0
        assert line.up == []
    assert main([*arguments, str(tmp_path / "here.parquet")]) == 0
    files = (tmp_path / f"{name}.parquet" for name in ("here", "there"))
    assert len({file.read_bytes() for file in files}) == 1


def test_an_upload_goes_on_with_a_service_that_was_killed(large, dataset, tmp_path):
    flags = [*NO_CLUSTER, "--port", free_port()]
    start = functools.partial(running_service, tmp_path / "data", *flags, ready=False)
    with ExitStack() as stack:
        first = stack.enter_context(start())
        line = stack.enter_context(line_to(first))
        client = stack.enter_context(Client(line.address, timeout_s=5))
        total, killed = [0], []

        def kill_in_the_middle(piece):
            total[0] += len(piece)
            if total[0] > 9_000_000 and not killed:
                kill_with_children(first.process)
                killed.append(stack.enter_context(start()))
            return piece

        line.change = kill_in_the_middle
        registered = client.register(large)
        assert killed
        # What was sent and not yet written is sent again.
        assert total[0] < 1.25 * large.stat().st_size
        # What came over is what the other service has.
        assert registered.sha256 == dataset["sha256"]
        assert uploads_at(first) == []


def test_a_line_that_holds_an_upload_up_is_left_for_another(service, large, dataset):
    with (
        line_to(service) as line,
        Client(line.address, timeout_s=1) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        total = [0]

        def hold(piece):
            total[0] += len(piece)
            if 9_000_000 < total[0] < 10_000_000 and line.connections == 1:
                line.open.clear()
            return piece

        line.change = hold
        registering = pool.submit(client.register, large)
        wait_until(lambda: line.connections > 1)
        line.open.set()
        assert registering.result(120).sha256 == dataset["sha256"]
        assert total[0] < 1.25 * large.stat().st_size


def test_bytes_that_changed_on_the_way_are_refused(service, large):
    content = large.read_bytes()
    middle = content[len(content) // 2 :][:16]
    before = uploads_at(service)
    with line_to(service) as line, Client(line.address) as client:
        line.change = lambda piece: piece.replace(middle, bytes(16))
        with pytest.raises(ServiceRefused, match=r"Repr-Digest says sha-256=.*: send it again"):
            client.register(large)
    assert uploads_at(service) == before


def test_an_upload_of_a_refused_request_does_not_stay(service, large):
    before = uploads_at(service)
    with Client(str(service.base_url)) as client, pytest.raises(ServiceRefused, match="no column"):
        client.register(large, lat="phi")
    assert uploads_at(service) == before
