#!/bin/bash
#SBATCH --job-name=georesolve
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --time=1-00:00:00
# A Dask cluster for georesolve as one SLURM job: the scheduler on its first node, workers on each.
#
#     sbatch --gpus-per-node=4 deploy/slurm/cluster.sh SHARED
#
# SHARED is a folder that all nodes and the host of the service see. In it: `georesolve`, this
# repository; `venv`, where it is installed; `tls`, made by deploy/make_certificates.sh. The scheduler writes its address to
# scheduler.json there, which the service reads again whenever a cluster was lost: when this job has
# ended and the next one begins, the jobs of the service go on where they were.
set -euo pipefail
shared=${1:?the shared folder, as sbatch deploy/slurm/cluster.sh SHARED}
worker=$shared/georesolve/deploy/images/worker-cpu.sh
[ -z "${SLURM_GPUS_ON_NODE:-}" ] || worker=$shared/georesolve/deploy/images/worker.sh

PATH=$shared/venv/bin:$PATH
export PATH DASK_CONFIG=$shared/tls
# On the disk of the node; compiled kernels differ by processor.
scratch=${TMPDIR:-/tmp}/georesolve-$SLURM_JOB_ID
export NUMBA_CACHE_DIR=$scratch/numba

rm -f "$shared/scheduler.json"
dask scheduler --protocol tls --port 0 --no-dashboard --scheduler-file "$shared/scheduler.json" &
scheduler=$!
srun --no-kill --kill-on-bad-exit=0 "$worker" \
    --scheduler-file "$shared/scheduler.json" --protocol tls --local-directory "$scratch" &
workers=$!
trap 'kill $workers $scheduler 2>/dev/null; wait' EXIT TERM

# Whichever ends first: without a scheduler there is no cluster, and without workers none is needed.
wait -n
