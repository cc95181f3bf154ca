#!/bin/sh
# Certificates for every service of compose.yaml, a tenant, and the token that its engines show.
#
#   sh init.sh ETCD_URL [FOLDER [NAME...]]
#
# What is there is left as it is, so that services keep what they were given, until its last month:
# run once more then, it makes that anew, and services take it up as they run. The NAMEs are those by
# which nodes, conductors and the proxy are reached.
set -eu
etcd=$1
tls=${2:-/etc/moonpool/tls}
if [ $# -gt 2 ]; then
    shift 2
else
    set -- node-0 node-1 node-2 conductor-0 conductor-1 proxy
fi
umask 077
openssl version > /dev/null
lasts() { # whether a certificate is there and holds for another month
    test -e "$1" && openssl x509 -in "$1" -noout -checkend 2592000 > /dev/null
}

if ! lasts "$tls/authority/ca.pem"; then
    rm -f "$tls"/authority/*
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
    if [ -z "$(find "$1" -size +0 -mtime -335 2> /dev/null)" ]; then
        moonpool token new --tenant pool --days 365 --etcd "$etcd" ${2:+"$2"} > "$1.new"
        mv "$1.new" "$1"
    fi
}
token "$tls/client/engine.token"
token "$tls/operator/operator.token" --admin

# What callers of the gateway see: put a certificate that they believe in its place. That is yours to
# renew.
ours() {
    openssl x509 -in "$1" -noout -subject | grep -q 'CN *= *moonpool$'
}
crt=$tls/proxy/tls.crt
if [ ! -e "$crt" ] || { ours "$crt" && ! lasts "$crt"; }; then
    mkdir -p "$tls/proxy"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 \
        -subj /CN=moonpool -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
        -keyout "$tls/proxy/tls.key" -out "$crt"
fi
