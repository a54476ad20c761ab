#!/bin/sh
# One part of a rehearsal of three, in a container or as a plain process:
#
#   entrypoint.sh organiser               creates the authority, and gives its public files to all
#   entrypoint.sh site NAME               joins, waits for its certificate, and runs; started again, it continues
#   entrypoint.sh sign NAME FINGERPRINT   signs a site's request, if its key has that fingerprint
#
# SHARED is a folder that all see. It stands for the messages by which organisations send each other public files and
# requests; in production people send these (docs/silo.md). A site's key stays in its SITE_HOME. Whoever can write in
# SHARED can put a request there, so a person signs each one, by the fingerprint in that site's log.
set -eu

: "${SHARED:=/shared}" "${FEDERATION:=/deploy/federation.toml}" "${PROBLEM:=example_problem:problem}" "${DECIBEL:=decibel}"
: "${LOG_FORMAT:=text}" "${WAIT:=3600}"

wait_for() {
    left=$WAIT
    until [ -s "$1" ]; do
        [ "$left" -gt 0 ] || { echo "entrypoint.sh: $1 did not come within $WAIT seconds." >&2; exit 1; }
        left=$((left - 1))
        sleep 1
    done
}

give() { # by another name first, so that nobody reads half a file
    cp "$1" "$2.part"
    mv "$2.part" "$2"
}

organise() {
    own=${AUTHORITY_HOME:-/authority}
    if [ ! -e "$own/authority/key.pem" ]; then
        $DECIBEL silo init "$FEDERATION" --out "$own" --no-passphrase
    fi
    mkdir -p "$SHARED/public"
    for file in authority.pem revoked.json federation.json; do # the last one tells that all are there
        give "$own/public/$file" "$SHARED/public/$file"
    done
}

sign_request() {
    name=$1
    own=${AUTHORITY_HOME:-/authority}
    wait_for "$SHARED/$name.request.pem"
    mkdir -p "$own/requests/$name"
    cp "$SHARED/$name.request.pem" "$own/requests/$name/request.pem"
    $DECIBEL silo sign "$name" "$own/requests/$name/request.pem" --out "$own" --fingerprint "$2"
    give "$own/requests/$name/certificate.pem" "$SHARED/$name.certificate.pem"
}

run_site() {
    name=$1
    own=${SITE_HOME:-/site}
    if [ ! -s "$own/certificate.pem" ]; then
        wait_for "$SHARED/public/federation.json"
        $DECIBEL silo join "$name" --public "$SHARED/public" --home "$own"
        give "$own/request.pem" "$SHARED/$name.request.pem"
        wait_for "$SHARED/$name.certificate.pem"
        give "$SHARED/$name.certificate.pem" "$own/certificate.pem"
    fi
    set -- --problem "$PROBLEM" --home "$own" --log-format "$LOG_FORMAT"
    if [ -n "${METRICS_PORT:-}" ]; then
        set -- "$@" --metrics-port "$METRICS_PORT"
    fi
    exec $DECIBEL silo run "$name" "$@" # so that SIGTERM reaches it
}

case "${1:-}" in
organiser) organise ;;
site) run_site "$2" ;;
sign) sign_request "$2" "$3" ;;
*) echo "entrypoint.sh organiser | site NAME | sign NAME FINGERPRINT" >&2 && exit 2 ;;
esac
