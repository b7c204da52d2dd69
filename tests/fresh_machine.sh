#!/usr/bin/env bash
# Runs the README's commands on a Debian that has nothing, and reports what was missing or failed. As root:
#
#     tests/fresh_machine.sh bookworm|trixie [MAKE-TARGET …]        # without targets: run test
#
# It makes a debootstrap root in a temporary folder and clones this checkout's last commit into it. There an ordinary
# user runs each target with a bare environment. When setup names packages that only root can install, root installs
# exactly those by exactly that command. All processes and mounts live in namespaces of their own, and end with them.
#
# The root reaches packages as this machine does. It gets this machine's pip.conf, uv.toml and added certificates, and
# of the environment what begins with PIP_ or UV_, or names a proxy or certificates. Further, from the environment:
#   FRESH_DEBIAN=URL           the Debian archive for debootstrap, and so for apt in the root
#   FRESH_APT_SOURCES=FILE     apt sources in place of debootstrap's
#   FRESH_LOGS=FOLDER          where logs are left (without: a temporary folder, which is printed)
#   TMPDIR                     where the root is made; it takes some 6 GB
set -euo pipefail
shopt -s nullglob

REPOSITORY=$(cd "$(dirname "$0")/.." && pwd)
ORDINARY=developer
CLONE=/home/$ORDINARY/sluice
ROUNDS_OF_PACKAGES=3
TOO_LONG_S=5400

say()  { printf 'fresh %s: %s\n' "$SUITE" "$*"; }
fail() { printf 'fresh_machine: %s\n' "$*" >&2; exit 2; }

CHILD=
await() { # await COMMAND: bash runs no trap while it waits for a command in the foreground
    local status=0
    set -m # in a process group of its own
    "$@" </dev/null &
    CHILD=$!
    set +m
    wait "$CHILD" || status=$?
    CHILD=
    return $status
}

# --- outside: the root is made and removed -----------------------------------------------------------------------------

make_root() {
    say "debootstrap"
    await debootstrap --variant=minbase --include=ca-certificates,make,git "$SUITE" "$ROOT" ${FRESH_DEBIAN:+"$FRESH_DEBIAN"} \
        >"$LOGS/debootstrap.log" 2>&1 || { tail -n 5 "$LOGS/debootstrap.log" >&2; fail "debootstrap failed"; }
    [ -z "${FRESH_APT_SOURCES:-}" ] || { rm -f "$ROOT/etc/apt/sources.list"; cp "$FRESH_APT_SOURCES" "$ROOT/etc/apt/sources.list.d/"; }
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d" # as in a container: packages' services aren't started
    chmod +x "$ROOT/usr/sbin/policy-rc.d"
    printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n' "$(hostname)" >"$ROOT/etc/hosts" # as Debian's installer writes it
    local file
    for file in /etc/resolv.conf /etc/pip.conf /etc/uv/uv.toml; do
        if [ -e "$file" ]; then mkdir -p "$ROOT${file%/*}"; cp -L "$file" "$ROOT$file"; fi
    done
    for file in /usr/local/share/ca-certificates/*.crt; do cp -L "$file" "$ROOT/usr/local/share/ca-certificates/"; done
    chroot "$ROOT" /usr/sbin/update-ca-certificates >/dev/null 2>&1
    chroot "$ROOT" /usr/sbin/useradd --create-home --shell /bin/bash $ORDINARY
    git -C "$REPOSITORY" diff --quiet HEAD || say "changes that aren't committed are left out"
    git clone --quiet --no-hardlinks "$REPOSITORY" "$ROOT$CLONE"
    say "commit $(git -C "$ROOT$CLONE" log -1 --format='%h %s')"
    chroot "$ROOT" chown -R $ORDINARY: "$CLONE"
}

outside() {
    case "$SUITE" in bookworm | trixie) ;; *) fail "usage: $0 bookworm|trixie [MAKE-TARGET …]" ;; esac
    [ "$(id -u)" = 0 ] || fail "run it as root: debootstrap and mounting need that"
    command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
    WORK=$(mktemp -d "${TMPDIR:-/var/tmp}/sluice-fresh-$SUITE.XXXXXX")
    ROOT=$WORK/root
    LOGS=${FRESH_LOGS:-$WORK/logs}
    mkdir -p "$ROOT" "$LOGS"
    local status=0
    trap 'rm -rf --one-file-system "$ROOT"; rmdir "$WORK" 2>/dev/null || true' EXIT
    trap 'if [ -n "$CHILD" ]; then kill -KILL -- "-$CHILD" 2>/dev/null; wait "$CHILD" || true; fi; exit 130' INT TERM HUP
    make_root
    await unshare --mount --pid --ipc --fork --kill-child "$0" "$SUITE" --inside "$ROOT" "$LOGS" "$@" || status=$?
    say "logs: $LOGS"
    exit $status
}

# --- inside: namespaces of its own, and the root as / --------------------------------------------------------------------

enter() { # enter ROOT LOGS
    local device
    mount --make-rprivate /
    mount --bind "$1" "$1"
    mkdir -p "$1/logs" "$1/before"
    mount --bind "$2" "$1/logs"
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount -t tmpfs -o mode=755 tmpfs "$1/dev"
    for device in null zero full random urandom tty; do
        : >"$1/dev/$device"
        mount --bind "/dev/$device" "$1/dev/$device"
    done
    mkdir -p "$1/dev/pts" "$1/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
    ln -s pts/ptmx "$1/dev/ptmx"
    ln -s /proc/self/fd "$1/dev/fd"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
    cd "$1"
    pivot_root . before
    cd /
    umount -l /before
}

settings_of_packages() {
    env | grep -E '^(PIP_|UV_|SSL_CERT_|REQUESTS_CA_BUNDLE=|(https?|no|HTTPS?|NO)_(proxy|PROXY)=)' || true
}

as_user() { # as_user COMMAND: a login's environment and nothing else
    local environment=(HOME=/home/$ORDINARY USER=$ORDINARY LOGNAME=$ORDINARY SHELL=/bin/bash TERM=dumb)
    environment+=(PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games)
    mapfile -t -O ${#environment[@]} environment < <(settings_of_packages)
    setpriv --reuid=$ORDINARY --regid=$ORDINARY --init-groups env -i "${environment[@]}" \
        timeout --kill-after=30 $TOO_LONG_S bash -c "cd $CLONE && $1" </dev/null
}

as_root() { env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c "$1" </dev/null; }

# The command for root that setup prints where an ordinary user lacks packages; "" if it printed none.
wanted_of_root() { sed -n '/As root:/,$ s/^ *setup: *\(apt-get install .*\)/\1/p' "$1" | head -n1; }

run_target() { # run_target MAKE-TARGET
    local target=$1 log=/logs/$1.log round command begun=$SECONDS status
    for ((round = 1; ; round++)); do
        status=0
        as_user "make $target" >"$log" 2>&1 || status=$?
        command=$(wanted_of_root "$log")
        if [ $status = 0 ] || [ -z "$command" ] || [ $round -gt $ROUNDS_OF_PACKAGES ]; then break; fi
        say "root: $command"
        as_root "export DEBIAN_FRONTEND=noninteractive; apt-get update -q && $command -y -q" >"/logs/$target-packages-$round.log" 2>&1 ||
            { tail -n 5 "/logs/$target-packages-$round.log"; say "root's apt-get failed"; break; }
    done
    OUTCOMES+=("make $target: $([ $status = 0 ] && echo passed || echo "FAILED ($status)") in $((SECONDS - begun)) s")
    # what is missing says so in few ways: setup's warnings, a library or a program that isn't found, skipped tests
    mapfile -t -O ${#OUTCOMES[@]} OUTCOMES < <(
        grep -hE '^(setup: +WARNING.*|(FAILED|ERROR|FLAKY) .*|=* ?[0-9]+ (passed|failed).*|.*cannot open shared object file.*|.*: command not found)$' "$log" |
            sort -u | head -n 60 | sed 's/^/    /'
    )
    if [ $status != 0 ]; then
        tail -n 30 "$log"
        FAILED=1
    fi
}

inside() { # inside ROOT LOGS MAKE-TARGET…
    local root=$1 logs=$2 target
    shift 2
    enter "$root" "$logs"
    OUTCOMES=() FAILED=0
    for target; do
        say "make $target"
        run_target "$target"
    done
    say "installed on top of debootstrap's: $(grep -hoE '^Setting up [^ ]+' /logs/*-packages-*.log 2>/dev/null | wc -l) packages"
    printf '%s\n' "${OUTCOMES[@]}" | tee /logs/outcome.txt
    exit $FAILED
}

SUITE=${1:-}
if [ "${2:-}" = --inside ]; then
    shift 2
    inside "$@"
fi
[ $# -gt 1 ] || set -- "$SUITE" run test
shift $(($# > 0 ? 1 : 0))
outside "$@"
