"""A request that was sent again after a kill has the job that it had."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.conftest import kill_with_children, running_service, wait_until
from tests.service.test_idempotency import jobs
from tests.service.test_jobs import parquet


@pytest.mark.timeout(300)
def test_a_key_survives_kill_9(tmp_path, shared_cluster, long_job):
    data_dir = tmp_path / "data"
    observations, references, options = long_job
    files = {"observations": ("o.parquet", parquet(observations.slice(0, 20_000)))}
    files["references"] = ("r.parquet", parquet(references))
    again = {"params": options, "files": files, "headers": {"Idempotency-Key": "g-1"}}
    with running_service(data_dir, *shared_cluster) as client, ThreadPoolExecutor(1) as thread:
        # Accepted, and not answered: the client never hears of its job.
        waiting = thread.submit(client.post, "/resolve", **again)
        wait_until(lambda: jobs(client))
        accepted = jobs(client)
        kill_with_children(client.process)
        with pytest.raises(httpx.TransportError):
            waiting.result()
    with running_service(data_dir, *shared_cluster) as client:
        answer = client.post("/resolve", **again)
        assert answer.status_code == 200, answer.text
        assert jobs(client) == accepted
        assert accepted.pop() in answer.headers["link"]
        refused = client.post("/resolve", **{**again, "params": {**options, "k": 2}})
        assert refused.status_code == 422
