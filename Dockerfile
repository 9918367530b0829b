# The images of georesolve: api, worker-cpu, worker (GPUs) and proxy, each a target of this file.
#
#     docker build --target api --tag georesolve-api .

# Python 3.13.15 for amd64 and arm64. The locks of the images are made for this Python: `make lock`.
ARG PYTHON_IMAGE=python:3.13-slim-trixie@sha256:ffb752e139c0a19692a43af8d8523b274222dd68eebad5d583b45c2201c6e30a

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src

FROM build AS package
COPY requirements/build.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --quiet --require-hashes --requirement requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY georesolve georesolve
RUN --network=none pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /dist .

FROM build AS environment-cpu
COPY requirements/api.txt requirements/
RUN python3 -m venv --without-pip /opt/georesolve
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/georesolve install --quiet --require-hashes --requirement requirements/api.txt
COPY --from=package /dist /dist
RUN --network=none pip --python /opt/georesolve install --quiet --no-cache-dir --no-deps --no-index /dist/*.whl

FROM build AS environment-gpu
COPY requirements/worker.txt requirements/
RUN python3 -m venv --without-pip /opt/georesolve
RUN --mount=type=cache,target=/root/.cache/pip \
    pip --python /opt/georesolve install --quiet --require-hashes --requirement requirements/worker.txt
COPY --from=package /dist /dist
RUN --network=none pip --python /opt/georesolve install --quiet --no-cache-dir --no-deps --no-index /dist/*.whl

# What all processes of Python share: a user without a name to log in by, folders that may be
# written to when they are volumes, and caches in /tmp, so that the root can be read-only.
FROM ${PYTHON_IMAGE} AS runtime
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="georesolve" \
      org.opencontainers.image.description="The exact nearest reference point of every geospatial observation" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin georesolve \
    && install --directory --owner georesolve --group georesolve /data /scratch /tls
ENV PATH=/opt/georesolve/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba
COPY deploy/images/healthy.py /usr/local/bin/healthy
COPY georesolve/workers/dask.yaml /etc/dask/georesolve.yaml
WORKDIR /tmp
STOPSIGNAL SIGTERM

FROM runtime AS api
COPY --from=environment-cpu /opt/georesolve /opt/georesolve
RUN --network=none python -c "import georesolve.service.server" \
    && python -c "import sys, importlib.util as find; sys.exit(bool(find.find_spec('cupy')))"
USER 10001:10001
ENV GEORESOLVE_HOST=0.0.0.0 GEORESOLVE_DATA_DIR=/data
EXPOSE 8000
# A minute without its cluster: workers that lose their scheduler first end what they have in hand.
HEALTHCHECK --interval=5s --start-interval=1s --timeout=5s --start-period=120s --retries=12 \
    CMD ["healthy", "http://127.0.0.1:8000/readyz"]
ENTRYPOINT ["georesolve"]
CMD ["serve"]

FROM runtime AS worker-cpu
COPY --from=environment-cpu /opt/georesolve /opt/georesolve
COPY deploy/images/worker-cpu.sh /usr/local/bin/worker-cpu
COPY deploy/images/together.py /usr/local/lib/together.py
RUN --network=none python -c "import georesolve.workers.partitions, georesolve.workers.plugin"
USER 10001:10001
HEALTHCHECK --interval=5s --start-interval=1s --timeout=5s --start-period=60s --retries=12 \
    CMD ["healthy", "--worker", "http://scheduler:8787"]
ENTRYPOINT ["worker-cpu", "--preload-nanny", "/usr/local/lib/together.py"]

# The driver, and with it libcuda, comes from the NVIDIA container toolkit at run time.
FROM runtime AS worker
COPY --from=environment-gpu /opt/georesolve /opt/georesolve
COPY deploy/images/worker.sh /usr/local/bin/worker
RUN --network=none python -c "import cudf, cupy, dask_cuda, dask_cudf, numba.cuda, rmm" \
    && python -c "import georesolve.workers.partitions, georesolve.workers.plugin"
USER 10001:10001
# Which GPUs, whoever starts the container says: Compose, or the device plugin of Kubernetes.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
HEALTHCHECK --interval=5s --start-interval=1s --timeout=5s --start-period=120s --retries=12 \
    CMD ["healthy", "--worker", "http://scheduler:8787"]
ENTRYPOINT ["worker"]

# On the same base as the others, whose layers are there already.
FROM ${PYTHON_IMAGE} AS proxy
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="georesolve proxy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends gettext-base nginx \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10002 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin proxy-user
COPY deploy/images/healthy.py /usr/local/bin/healthy
COPY deploy/proxy/start.sh /usr/local/bin/start-proxy
COPY deploy/proxy/nginx.conf.template /etc/georesolve/nginx.conf.template
RUN start-proxy --test
USER 10002:10002
EXPOSE 8080
STOPSIGNAL SIGQUIT
HEALTHCHECK --interval=5s --start-interval=1s --timeout=5s --start-period=10s --retries=6 \
    CMD ["healthy", "http://127.0.0.1:8081/"]
ENTRYPOINT ["start-proxy"]
