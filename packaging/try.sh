#!/usr/bin/env bash
# Tries the Debian package in a real systemd: packaging/try.sh OLD.deb NEW.deb
#
# In a container of systemd-nspawn, below $TRY_ROOT (default: /var/tmp/longshore-try; a Debian by
# debootstrap, kept for the next run), it installs OLD, runs three replicas, a publisher and a
# worker, kills each, hangs the publisher, and installs NEW, while jobs are enqueued. It fails if an
# acknowledged job did not run. Needs root, and: apt-get install systemd-container debootstrap
set -euo pipefail

inside() {
    export LONGSHORE_CONFIG=/etc/longshore/config.toml
    cd /try
    touch acknowledged enqueue.log errors
    step "install $(dpkg-deb --show old.deb | tr '\t' ' ')"
    dpkg --install old.deb
    longshore --version
    [ -z "$(units)" ] || fail "the package has started $(units)"

    step "verify the units"
    printf '%s\n' QUEUES=/jobs/try COMMAND=cat 'OPTIONS=--concurrency 4' \
        > /etc/longshore/worker-try.env
    systemd-analyze verify --man=no longshore-resolver.service longshore-publisher.service \
        longshore-worker@try.service || fail "systemd-analyze verify"
    for unit in longshore-resolver longshore-publisher longshore-worker@try; do
        systemd-analyze security --no-pager $unit.service | tail -n 1
    done

    step "start three replicas, a publisher and a worker"
    local file=/usr/lib/systemd/system/longshore-resolver
    for n in 2 3; do
        local flags="--name replica-$n --listen 127.0.0.1:477$((n - 1))"
        sed "s|longshore-resolver|&-$n|; s|resolver run|& $flags|; \
            s|\(--data %S/longshore-resolver\)\(-$n\)*|\1-$n|" $file.service \
            > /etc/systemd/system/longshore-resolver-$n.service
    done
    sed -i 's/^resolvers = .*/resolvers = ["127.0.0.1:4770", "127.0.0.1:4771", "127.0.0.1:4772"]/' \
        $LONGSHORE_CONFIG
    longshore config --check
    # A new cluster: otherwise its replicas wait two minutes for publishers that they do not know.
    for n in 1 2 3; do
        longshore --log error resolver run --fresh --listen 127.0.0.1:477$((n - 1)) \
            --data "/var/lib/longshore-resolver-$n" > /dev/null &
    done
    await "three new replicas answer" eval 'longshore resolver status > /dev/null 2>&1'
    sleep 2
    kill $(jobs -p)
    wait
    mv /var/lib/longshore-resolver-1 /var/lib/longshore-resolver
    systemctl daemon-reload
    local all="longshore-resolver longshore-resolver-2 longshore-resolver-3 longshore-publisher \
        longshore-worker@try"
    time systemctl enable --quiet --now $all
    local group
    group=$(getent group longshore | cut -d: -f3)
    for unit in $all; do
        describe "$unit"
        grep -qw "Groups:.*$group" "/proc/$(pid "$unit")/status" ||
            fail "$unit cannot read what the group longshore may"
    done

    step "enqueue all the time"
    enqueue_until_told &
    local enqueuer=$!
    await_jobs

    for unit in $all; do
        step "kill -9 $unit"
        local old
        old=$(pid "$unit")
        kill -9 "$old"
        await "$unit is back" is_back "$unit" "$old"
        describe "$unit"
        await_jobs
    done

    step "stop the publisher's process: the watchdog ends it"
    local old
    old=$(pid longshore-publisher)
    kill -STOP "$old"
    await "longshore-publisher is back" is_back longshore-publisher "$old"
    journalctl --no-pager --unit longshore-publisher | grep -i watchdog | tail -n 2
    describe longshore-publisher
    await_jobs

    step "reload"
    systemctl reload longshore-publisher longshore-resolver
    await "it has reloaded" has_reloaded
    systemctl is-active longshore-publisher longshore-resolver

    step "upgrade to $(dpkg-deb --show new.deb | tr '\t' ' ')"
    local before
    before=$(for unit in $all; do pid "$unit"; done | sort)
    time dpkg --force-confold --install new.deb
    longshore --version
    # The package restarts its own units; these two are ours.
    local replica=longshore-resolver
    for n in 2 3; do
        await "$replica is complete" is_complete $replica
        replica=longshore-resolver-$n
        systemctl restart $replica
    done
    for unit in $all; do
        await "$unit runs" systemctl --quiet is-active "$unit"
        describe "$unit"
        cmp --silent "/proc/$(pid "$unit")/exe" /usr/bin/longshore ||
            fail "$unit runs the old program"
    done
    [ -z "$(comm -12 <(echo "$before") <(for unit in $all; do pid "$unit"; done | sort))" ] ||
        fail "a service was not restarted"
    await_jobs

    step "audit logs of their own, and sockets in one folder"
    # The other two replicas of this machine have neither.
    cp $LONGSHORE_CONFIG /etc/longshore/replicas.toml
    sed -i 's|config\.toml|replicas.toml|' /etc/systemd/system/longshore-resolver-?.service
    useradd --system --gid longshore --no-create-home longshore
    sed -i -e 's|^\[resolver\]|&\nlisten_unix = "/run/longshore/resolver.sock"|' \
        -e 's|^\[publisher\]|&\nlisten_unix = "/run/longshore/publisher.sock"|' $LONGSHORE_CONFIG
    printf '[access]\naudit = "audit.jsonl"\n' >> $LONGSHORE_CONFIG
    longshore config --check
    local unit
    for unit in longshore-resolver longshore-publisher; do
        mkdir /etc/systemd/system/$unit.service.d
        printf '%s\n' '[Service]' DynamicUser=no User=longshore RuntimeDirectory=longshore \
            RuntimeDirectoryPreserve=yes > /etc/systemd/system/$unit.service.d/sockets.conf
    done
    systemctl daemon-reload
    systemctl restart $all
    for unit in $all; do describe "$unit"; done
    await "a replica answers at its socket" eval \
        'longshore --resolver unix:/run/longshore/resolver.sock resolver status > /dev/null'
    longshore pause /jobs/tried
    longshore resume /jobs/tried
    grep -q '"pause"' /var/log/longshore/audit.jsonl || fail "the pause is not in the audit log"
    [ -s /var/log/longshore-resolver/audit.jsonl ] || fail "the replica has no audit log"
    await_jobs

    step "every acknowledged job has run"
    touch enough
    wait $enqueuer
    await "the queue is empty" is_empty
    longshore jobs /jobs/try --state completed --json |
        sed -n 's/.*"payload":"\([0-9]*\)".*/\1/p' | sort > completed
    local lost
    lost=$(sort acknowledged | comm -23 - completed | wc -l)
    echo "acknowledged: $(wc -l < acknowledged), completed: $(wc -l < completed)," \
        "batches not acknowledged: $(cat refused), acknowledged and lost: $lost"
    longshore stat /jobs/try
    [ "$lost" = 0 ] || fail "jobs are lost"
    [ "$(wc -l < acknowledged)" -gt 100 ] || fail "too few jobs to mean anything"

    step "remove and purge"
    dpkg --remove longshore
    systemctl stop longshore-resolver-2 longshore-resolver-3
    [ -z "$(units)" ] || fail "still running: $(units)"
    dpkg --purge longshore
    [ -e /var/lib/longshore/ ] || fail "the purge has deleted the jobs"
    echo "ALL GOOD"
}

step() { printf '\n== %s\n' "$*"; }

fail() {
    echo "FAILED: $*"
    tail -n 5 errors enqueue.log
    journalctl --no-pager --lines 60 --unit 'longshore-*'
    exit 1
}

units() {
    systemctl list-units --plain --no-legend --state=active 'longshore-*.service' | cut -d' ' -f1
}

pid() { systemctl show --property=MainPID --value "$1"; }

is_back() { [ "$(pid "$1")" != "$2" ] && systemctl --quiet is-active "$1"; }

is_empty() {
    longshore stat /jobs/try --json > stat 2>> errors && grep -q '"complete": true' stat &&
        ! grep -Eq '"(ready|running|retrying)": [1-9]' stat
}

await_jobs() { await "50 more jobs are acknowledged" has_more $(($(wc -l < acknowledged) + 50)); }

has_more() { [ "$(wc -l < acknowledged)" -ge "$1" ]; }

describe() {
    local state
    state=$(systemctl show --property=ActiveState,MainPID,StatusText --value "$1" | paste -sd' ')
    echo "$1: $state"
}

# grep reads to the end: with pipefail, journalctl must not fail for a closed pipe.
has_reloaded() {
    journalctl --no-pager --unit longshore-publisher | grep "SIGHUP: " > /dev/null
}

is_complete() {
    case $(systemctl show --property=StatusText --value "$1") in
        warming* | listens*) return 1 ;;
    esac
}

await() {
    local what=$1 tries=240
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "not within 60 s: $what"
        sleep 0.25
    done
}

# Ten jobs at a time, each with a number. A batch counts once it is acknowledged.
enqueue_until_told() {
    local next=0 refused=0
    until [ -e enough ]; do
        if seq $next $((next + 9)) |
            longshore enqueue /jobs/try --lines --keep 1d > /dev/null 2>> enqueue.log
        then seq $next $((next + 9)) >> acknowledged
        else refused=$((refused + 1)); fi
        next=$((next + 10))
        sleep 0.1
    done
    echo $refused > refused
}

if [ "${1:-}" = --inside ]; then
    # The container has no other way to end.
    trap 'echo "exit code $?" && systemctl poweroff --no-block' EXIT
    inside
    exit
fi

old=${1:?usage: packaging/try.sh OLD.deb NEW.deb}
new=${2:?usage: packaging/try.sh OLD.deb NEW.deb}
root=${TRY_ROOT:-/var/tmp/longshore-try}
if [ ! -e "$root/sbin/init" ]; then
    debootstrap --variant=minbase --include=systemd-sysv,dbus,procps bookworm "$root"
fi
container=$(mktemp -d)
trap 'rm -rf "$container"' EXIT
cp "$old" "$container/old.deb"
cp "$new" "$container/new.deb"
cp "$0" "$container/try.sh"
cat > "$container/try.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/try/try.sh --inside
StandardOutput=file:/try/log
StandardError=inherit
UNIT
ln -s try.service "$container/default.target"
# A throwaway copy of the Debian, without a network. Its log is printed when it ends.
timeout 600 systemd-nspawn --quiet --register=no --keep-unit --private-network --volatile=overlay \
    --directory="$root" --bind="$container:/try" --console=read-only --boot \
    --bind-ro="$container/try.service:/etc/systemd/system/try.service" \
    systemd.unit=multi-user.target systemd.wants=try.service \
    < /dev/null > "$container/console" 2>&1 ||
    tail -n 20 "$container/console"
cat "$container/log"
grep -q '^ALL GOOD$' "$container/log"
