#!/bin/sh
# Dask workers of a machine without GPUs: a process a core and at most 8, and what cores are left
# become threads of each, as `georesolve serve` has it for a cluster of its own.
#
#     worker-cpu [FLAG OF `dask worker` ...] SCHEDULER
#
# WORKERS in the environment is another number of processes.
set -eu
cores=$(nproc)
workers=${WORKERS:-$((cores < 8 ? cores : 8))}
threads=$((cores / workers))
export NUMBA_NUM_THREADS="${NUMBA_NUM_THREADS:-$((threads > 0 ? threads : 1))}"
exec dask worker --nworkers "$workers" --nthreads 1 --no-dashboard "$@"
