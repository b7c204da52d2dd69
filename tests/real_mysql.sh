#!/usr/bin/env bash
# Runs tests against a real MySQL, which Debian has in its unstable archive only. As root:
#
#     tests/real_mysql.sh PYTEST-ARGUMENT …       # `make test-downstream` names them
#
# It makes a debootstrap root with MySQL in .venv/mysql, once, starts the server there on a free loopback port with an
# empty data folder, and ends it after the tests. FRESH_DEBIAN=URL is the Debian archive, as in fresh_machine.sh.
set -euo pipefail

REPOSITORY=$(cd "$(dirname "$0")/.." && pwd)
ROOT=$REPOSITORY/.venv/mysql

say()  { printf 'real_mysql: %s\n' "$*"; }
fail() { printf 'real_mysql: %s\n' "$*" >&2; exit 2; }

make_root() {
    [ ! -x "$ROOT/usr/sbin/mysqld" ] || return 0
    command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
    say "MySQL from Debian unstable"
    rm -rf "$ROOT.new"
    mkdir -p "$ROOT.new"
    debootstrap --variant=minbase --include=mysql-server-core,mysql-client-core sid "$ROOT.new" \
        ${FRESH_DEBIAN:+"$FRESH_DEBIAN"} >"$ROOT.log" 2>&1 || { tail -n 5 "$ROOT.log" >&2; fail "debootstrap failed"; }
    rm -rf "$ROOT"
    mv "$ROOT.new" "$ROOT"
}

free_port() { "$REPOSITORY/.venv/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start_server() {
    local folder=/srv/mysql
    rm -rf "$ROOT$folder"
    mkdir -p "$ROOT$folder/tmp"
    chroot "$ROOT" /usr/sbin/mysqld --no-defaults --initialize-insecure --user=root --datadir=$folder/data >"$ROOT.log" 2>&1 \
        || { tail -n 5 "$ROOT.log" >&2; fail "mysqld can't make its data folder"; }
    PORT=$(free_port)
    # durability is not what is tried here, the disk is slow
    chroot "$ROOT" /usr/sbin/mysqld --no-defaults --user=root --datadir=$folder/data --tmpdir=$folder/tmp \
        --socket=$folder/s --pid-file=$folder/pid --port="$PORT" --bind-address=127.0.0.1 --mysqlx=OFF \
        --skip-name-resolve --skip-log-bin --local-infile=ON --secure-file-priv=NULL \
        --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=OFF --innodb-flush-method=nosync >"$ROOT.log" 2>&1 &
    SERVER=$!
    trap 'kill "$SERVER" 2>/dev/null; wait "$SERVER" 2>/dev/null || true' EXIT
    local tries=300
    until chroot "$ROOT" mysqladmin --no-defaults --socket=$folder/s --user=root ping >/dev/null 2>&1; do
        kill -0 "$SERVER" 2>/dev/null || { tail -n 5 "$ROOT.log" >&2; fail "mysqld ended"; }
        [ $((tries -= 1)) -gt 0 ] || fail "mysqld doesn't answer; see $ROOT.log"
        sleep 0.2
    done
    chroot "$ROOT" mysql --no-defaults --socket=$folder/s --user=root \
        --execute="CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION"
    say "$(chroot "$ROOT" /usr/sbin/mysqld --version) at 127.0.0.1:$PORT"
}

[ "$(id -u)" = 0 ] || fail "run it as root: debootstrap needs that"
cd "$REPOSITORY"
make_root
start_server
.venv/bin/python -m pytest -n0 --downstream-server "$PORT" "$@"
