#!/bin/sh
# Start nginx with the configuration that the environment asks for.
#
# UPLOAD_BYTES     bytes that a request may have; the service knows the same number
# BODY_SECONDS     how long a client may pause while it sends
# RESOLVER         the name server that knows the names of the services
# /run/secrets/proxy_certificate, proxy_key   when there is something in them: TLS
set -eu
export UPLOAD_BYTES="${UPLOAD_BYTES:-8589934592}" BODY_SECONDS="${BODY_SECONDS:-30}"
export RESOLVER="${RESOLVER:-127.0.0.11}"
certificate=/run/secrets/proxy_certificate
key=/run/secrets/proxy_key
if [ -s "$certificate" ]; then
    export LISTEN="listen 8080 ssl; http2 on; ssl_certificate $certificate; ssl_certificate_key $key;"
else
    export LISTEN="listen 8080;"
fi
# Only these: nginx has variables of its own.
# shellcheck disable=SC2016
envsubst '$UPLOAD_BYTES $BODY_SECONDS $RESOLVER $LISTEN' \
    </etc/georesolve/nginx.conf.template >/tmp/nginx.conf
if [ "${1:-}" = --test ]; then
    nginx -t -c /tmp/nginx.conf
    rm /tmp/nginx.*
    exit
fi
exec nginx -c /tmp/nginx.conf -g "daemon off;"
