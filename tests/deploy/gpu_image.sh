#!/bin/bash
# Run the file system of the image `worker` on the GPUs of a machine that has no Docker engine: by
# chroot, with the devices and libraries of the driver bound, as `docker run --gpus all` binds them.
# A LocalCUDACluster of the image's Python resolves the samples, and then its CPU does: the digests
# of both results must be one. Needs root, and some GB of disk.
#
#     docker export "$(docker create georesolve-worker)" | xz -T0 | split -b 60M -d - part.
#     tests/deploy/gpu_image.sh FOLDER_OF_PARTS [ROOT] [DEVICE ...]
#     tests/deploy/gpu_image.sh FOLDER_OF_PARTS ROOT -- COMMAND ...      # runs that in it instead
#
# Parts may lie in folders of that folder. ROOT is where they are unpacked, /tmp/gpu-image unless
# named; what is there already is taken as it is. DEVICES are cuda and cpu unless named.
set -euo pipefail
parts=$1 root=${2:-/tmp/gpu-image}
devices=("${@:3}")
[ "${#devices[@]}" -gt 0 ] || devices=(cuda cpu)
samples=$(cd "$(dirname "$0")/../../samples" && pwd)

if [ ! -e "$root/.unpacked" ]; then
    mkdir -p "$root"
    mapfile -t files < <(find "$parts" -name 'part.*' -printf '%f %p\n' | sort | cut -d' ' -f2-)
    cat "${files[@]}" | xz -dcT0 | tar -C "$root" -xpf -
    touch "$root/.unpacked"
fi

# What follows is mounted for this script alone; where root may not mount, as root of a namespace.
if [ -z "${GPU_IMAGE_USER:-}" ]; then
    if unshare --mount true 2>/dev/null; then
        exec env GPU_IMAGE_USER=10001:10001 unshare --mount --propagation private "$0" "$@"
    fi
    exec env GPU_IMAGE_USER=0:0 unshare --map-root-user --mount --propagation private "$0" "$@"
fi
bind() {
    [ -e "$2" ] || install -D /dev/null "$2"
    mount --bind "$1" "$2"
}
mount -t tmpfs tmpfs "$root/tmp" -o mode=1777
mount -t tmpfs tmpfs "$root/dev" -o mode=755
mkdir -p "$root/dev/shm" "$root/proc" "$root/sys" "$root/tmp/samples"
mount -t tmpfs tmpfs "$root/dev/shm" -o mode=1777
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
bind /etc/hosts "$root/etc/hosts"
shopt -s nullglob
for device in /dev/{null,zero,full,random,urandom} /dev/nvidia* /dev/nvidia-caps/*; do
    [ -d "$device" ] || bind "$device" "$root$device"
done
for library in $(ldconfig -p | awk '/libcuda\.so\.|libcudadebugger|libnvidia-/ {print $NF}' | sort -u) \
    /usr/local/nvidia/lib64/lib{cuda,nvidia-}*.so.1; do
    bind "$(readlink -f "$library")" "$root/usr/lib/x86_64-linux-gnu/$(basename "$library")"
done
program=$(command -v nvidia-smi || true)
[ -z "$program" ] || bind "$program" "$root/usr/bin/nvidia-smi"
install -m 644 "$samples"/{airports,places}.parquet "$root/tmp/samples/"

cat >"$root/tmp/resolve.py" <<'PYTHON'
"""Resolve the samples by a cluster of a device, and print the digest of the result."""

import re
import subprocess
import sys
import time
from pathlib import Path

from georesolve import Client

device = sys.argv[1]
log = Path(f"/tmp/{device}.log")
flags = ["--device", device, "--data-dir", f"/tmp/{device}", "--port", "0", "--fronts", "1"]
with log.open("w") as out:
    service = subprocess.Popen(["georesolve", "serve", *flags], stdout=out, stderr=out)
try:
    while not (told := re.search(r"answers at (http://\S+)", log.read_text())):
        if service.poll() is not None:
            sys.exit(log.read_text())
        time.sleep(0.2)
    [opened] = re.findall(r"cluster open: .*", log.read_text())
    print(opened, file=sys.stderr)
    with Client(told[1], progress=False) as client:
        start = time.monotonic()
        job = client.submit("/tmp/samples/airports.parquet", "/tmp/samples/places.parquet", k=3)
        report = job.report()
    print(f"{report['device']}: {time.monotonic() - start:.1f} s, {report['counts']}", file=sys.stderr)
    print(report["digest"])
finally:
    service.terminate()
    service.wait(60)
PYTHON

inside() {
    env -i PATH=/opt/georesolve/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUNBUFFERED=1 \
        NUMBA_CACHE_DIR=/tmp/numba LANG=C.UTF-8 \
        "$(command -v chroot)" --userspec="$GPU_IMAGE_USER" "$root" /bin/sh -c 'cd /tmp && exec "$@"' sh "$@"
}
if [ "${devices[0]}" = -- ]; then
    inside "${devices[@]:1}"
    exit
fi
inside python -c 'import platform, sys; print(sys.version, platform.freedesktop_os_release()["PRETTY_NAME"])'
[ -z "$program" ] || inside nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
case " ${devices[*]} " in *" cuda "*)
    inside python -c 'import cudf, cupy, numba, numba_cuda
print("cudf", cudf.__version__, "cupy", cupy.__version__, "numba", numba.__version__, "numba-cuda", numba_cuda.__version__)
from dask_cuda import LocalCUDACluster
if __name__ == "__main__":
    with LocalCUDACluster() as cluster:
        print(cluster)'
    ;;
esac
digests=()
for device in "${devices[@]}"; do
    digests+=("$(inside python /tmp/resolve.py "$device")")
    echo "$device: ${digests[-1]}"
done
for digest in "${digests[@]}"; do
    [ "$digest" = "${digests[0]}" ] || { echo "the results differ" >&2; exit 1; }
done
echo "the same bytes on ${devices[*]}"
