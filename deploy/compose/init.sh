#!/bin/sh
# Certificates for every service of compose.yaml, a tenant, and the token that its engines show.
#
#   sh init.sh ETCD_URL [FOLDER [NAME...]]
#
# Made once: what is there is left as it is, so that services keep what they were given. The NAMEs are
# those by which nodes, conductors and the proxy are reached.
set -eu
etcd=$1
tls=${2:-/etc/moonpool/tls}
if [ $# -gt 2 ]; then
    shift 2
else
    set -- node-0 node-1 node-2 conductor-0 conductor-1 proxy
fi
umask 077

if [ ! -e "$tls/authority/ca.pem" ]; then
    hosts=
    for name in "$@"; do
        hosts="$hosts --host $name"
    done
    # shellcheck disable=SC2086 # names have no spaces
    moonpool certs "$tls/authority" --node pool --conductor pool \
        --client engine --client operator $hosts
fi
give() { # a role, its name, and the folder of those who have it
    mkdir -p "$tls/$3"
    cp "$tls/authority/ca.pem" "$tls/authority/$1-$2.pem" "$tls/authority/$1-$2.key" "$tls/$3/"
}
give node pool node
give conductor pool conductor
give client engine client
give client operator operator

moonpool tenant ls --etcd "$etcd" | grep -qx pool || moonpool tenant add pool --etcd "$etcd"
token() { # a file, and whether its holder is an operator
    test -s "$1" || moonpool token new --tenant pool --days 365 --etcd "$etcd" ${2:+"$2"} > "$1"
}
token "$tls/client/engine.token"
token "$tls/operator/operator.token" --admin

# What callers of the gateway see: put a certificate that they believe in its place.
if [ ! -e "$tls/proxy/tls.crt" ]; then
    mkdir -p "$tls/proxy"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 \
        -subj /CN=moonpool -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
        -keyout "$tls/proxy/tls.key" -out "$tls/proxy/tls.crt"
fi
