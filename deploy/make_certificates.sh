#!/bin/sh
# Certificates for TLS between the processes of Dask: make_certificates.sh FOLDER [DAYS]
#
# Writes a certificate authority of its own, one certificate that it has signed, and what Dask is to
# read: tls.yaml, with which it speaks TLS only, and only with those who have such a certificate, and
# a copy of georesolve/workers/dask.yaml. Every process of the cluster, the service included, reads the folder:
# DASK_CONFIG=FOLDER. Where they find it elsewhere, AT in the environment says where.
#
# Dask asks who signed a certificate, not whom it names: whoever has dask.key is let in. The key of
# the authority is not kept, so nothing else can be signed: to renew, make a new folder and start
# the cluster anew.
set -eu
[ $# -ge 1 ] || { sed -n '2,12p' "$0"; exit 2; }
days=${2:-365}
umask 077
mkdir -p "$1"
folder=$(cd "$1" && pwd)
at=${AT:-$folder}
authority=$(mktemp -d)
trap 'rm -rf "$authority"' EXIT

quietly() {
    "$@" 2>"$authority/log" || { cat "$authority/log" >&2; exit 1; }
}
new() {
    quietly openssl req "$@" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes
}
new -x509 -days "$days" -subj "/CN=georesolve dask" -keyout "$authority/key" -out "$folder/ca.crt"
new -subj "/CN=dask" -keyout "$folder/dask.key" -out "$authority/request"
quietly openssl x509 -req -days "$days" -in "$authority/request" -out "$folder/dask.crt" \
    -CA "$folder/ca.crt" -CAkey "$authority/key" -CAserial "$authority/serial" -CAcreateserial

cp "$(dirname "$0")/../georesolve/workers/dask.yaml" "$folder/"
cat >"$folder/tls.yaml" <<YAML
distributed:
  comm:
    default-scheme: tls
    require-encryption: true
    tls:
      min-version: 1.3
      ca-file: $at/ca.crt
      scheduler: { cert: $at/dask.crt, key: $at/dask.key }
      worker: { cert: $at/dask.crt, key: $at/dask.key }
      client: { cert: $at/dask.crt, key: $at/dask.key }
YAML
echo "$folder: valid for $days days"
