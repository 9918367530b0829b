# Debian's Prometheus in the place of its own image: what it asks and counts is the same.
FROM python:3.13-slim-trixie
# hadolint ignore=DL3008
RUN apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner nobody --group nogroup /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]
