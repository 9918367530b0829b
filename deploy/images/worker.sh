#!/bin/sh
# Dask workers of a machine with GPUs: a process a GPU, with the allocator and the two threads
# that `georesolve serve` gives those of a cluster of its own.
#
#     worker SCHEDULER [FLAG OF `dask cuda worker` ...]
#
# CUDA_VISIBLE_DEVICES in the environment chooses among the GPUs.
set -eu
exec dask cuda worker --nthreads 6 --rmm-async --no-dashboard "$@"
