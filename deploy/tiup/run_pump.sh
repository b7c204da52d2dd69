#!/bin/sh
# Starts the pump as TiUP does, for who has none: unpack the tarball into a folder `bin`, write `conf/pump.toml` beside it, and
#
#   ADVERTISE=10.0.0.5:8250 PD=http://pd-1:2379,http://pd-2:2379 bin/run_pump.sh
#
# What the pump keeps is in `data`, its log in `log`.
set -eu
cd "$(dirname -- "$(readlink -f -- "$0")")/.."
mkdir -p data log
exec bin/pump -addr "0.0.0.0:${ADVERTISE##*:}" -advertise-addr "$ADVERTISE" -pd-urls "$PD" \
    -data-dir data -log-file log/pump.log -config conf/pump.toml 2>> log/pump_stderr.log
