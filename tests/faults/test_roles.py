"""A front or the runner is killed under load: others go on, and it is started anew."""

import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.conftest import finished, look_up, points, roles_of, running_service, wait_until
from tests.service.test_jobs import start_job

CLIENTS = 6
INPUTS = {
    "observations": {"lat": [1.0, 2.0] * 50, "lon": [3.0, 4.0] * 50},
    "references": {"lat": [1.0, -5.0], "lon": [3.0, 4.0]},
}


@pytest.fixture(scope="module")
def fronts(tmp_path_factory, device):
    data_dir = tmp_path_factory.mktemp("roles") / "data"
    with running_service(data_dir, "--device", device, "--fronts", 2) as client:
        yield client


def wait_for_another(client, role, ended):
    """Wait until a process of a service has another in its place."""
    pids = {one.pid for one in ended}

    def is_there():
        found = {one.pid for one in roles_of(client.process, role)}
        return len(found) == len(pids) and found != pids

    wait_until(is_there)


def connections_of(front, port):
    found = [one for one in front.net_connections("tcp") if one.laddr.port == port]
    return sum(one.status == "ESTABLISHED" for one in found)


def test_all_fronts_take_connections(fronts):
    """How evenly, `tests/service/test_connections.py` says: a busy machine lets one front wait."""
    host, port = fronts.base_url.host, fronts.base_url.port
    both = roles_of(fronts.process, "front")
    with ExitStack() as stack:

        def have_some():
            stack.enter_context(socket.create_connection((host, port)))
            return min(connections_of(front, port) for front in both) >= 15

        wait_until(have_some)


@pytest.mark.timeout(300)
def test_a_killed_front_breaks_its_own_connections_only(fronts):
    expected = look_up(fronts, INPUTS).content
    stop, answers, broken = threading.Event(), Counter(), Counter()

    def ask(number):
        with httpx.Client(base_url=fronts.base_url, timeout=60) as client:
            while not stop.is_set():
                try:
                    answer = look_up(client, INPUTS)
                except httpx.TransportError:
                    broken[number] += 1
                    continue
                assert (answer.status_code, answer.content) == (200, expected), answer.text
                answers[number] += 1

    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(ask, number) for number in range(CLIENTS)]
        try:
            wait_until(lambda: len(answers) == CLIENTS)
            killed = roles_of(fronts.process, "front")
            # Once it stands still it takes no further one before it is killed.
            killed[0].suspend()
            connections = connections_of(killed[0], fronts.base_url.port)
            killed[0].kill()
            wait_for_another(fronts, "front", killed)
            before = answers.copy()
            wait_until(lambda: all(answers[n] > before[n] + 5 for n in range(CLIENTS)))
        finally:
            stop.set()
        for one in asking:
            one.result()
    assert sum(broken.values()) <= connections, "each broken connection broke once"
    wait_until(lambda: fronts.get("/readyz").is_success)


@pytest.mark.timeout(300)
def test_a_job_whose_runner_is_killed_ends_with_the_same_bytes(fronts, long_job):
    observations, references, options = long_job
    observations = observations.slice(0, observations.num_rows // 3)
    undisturbed = start_job(fronts, observations, references)
    assert finished(fronts, undisturbed)["status"] == "successful"
    job = start_job(fronts, observations, references, **options)
    wait_until(lambda: fronts.get(job).json()["progress"] > 10)
    killed = roles_of(fronts.process, "runner")
    killed[0].kill()
    assert fronts.get(job).json()["status"] == "running", "fronts answer meanwhile"
    assert look_up(fronts, INPUTS).status_code == 200
    wait_for_another(fronts, "runner", killed)
    info = finished(fronts, job)
    assert info["status"] == "successful", info
    content = fronts.get(f"{job}/results").content
    assert content == fronts.get(f"{undisturbed}/results").content


def test_what_dies_again_and_again_is_started_with_growing_pauses(fronts):
    """A small job is done all the same."""
    for _ in range(3):
        killed = roles_of(fronts.process, "runner")
        killed[0].kill()
        wait_for_another(fronts, "runner", killed)
    job = start_job(fronts, points(100, 1), points(10, 2))
    assert finished(fronts, job)["status"] == "successful"
