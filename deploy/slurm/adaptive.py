"""A Dask cluster for georesolve whose workers are SLURM jobs, as many as there is work for.

Runs on a host that may submit jobs, with ``pip install dask-jobqueue`` beside georesolve:

    python deploy/slurm/adaptive.py SHARED

``SHARED`` is as in ``cluster.sh``. Adapt the resources of a job to your machines, or keep them in
``~/.config/dask/jobqueue.yaml``. The scheduler lives as long as this process; the service connects
with ``--scheduler-file SHARED/scheduler.json``.
"""

import signal
import sys
from pathlib import Path

import dask
from dask_jobqueue import SLURMCluster
from distributed.security import Security

MINIMUM_JOBS, MAXIMUM_JOBS = 1, 8


def main(shared: Path) -> None:
    """Keep the cluster until a signal ends it."""
    dask.config.refresh(paths=[*dask.config.paths, str(shared / "tls")])
    with SLURMCluster(
        cores=1,
        processes=1,
        memory="16GB",
        walltime="08:00:00",
        # A GPU a job: job_extra_directives=["--gpus=1"], worker_command="dask_cuda.cli",
        # worker_extra_args=["--rmm-async", "--nthreads", "6"].
        job_script_prologue=[f"export DASK_CONFIG={shared}/tls"],
        python=f"{shared}/venv/bin/python",
        protocol="tls://",
        security=Security(),
    ) as cluster:
        cluster.adapt(minimum_jobs=MINIMUM_JOBS, maximum_jobs=MAXIMUM_JOBS)
        with cluster.get_client() as client:
            client.write_scheduler_file(str(shared / "scheduler.json"))
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
