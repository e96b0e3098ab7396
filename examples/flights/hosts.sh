#!/bin/sh
# The demo over three hosts: network namespaces, each with an address, files and a worker of its own, on one bridge.
# Each command of `nebuli` is shown before it runs, with its host as the prompt; on three machines you type the same.
#
# Networks, processes and files of the hosts are in namespaces that nothing else is in, and so the system takes them
# down with this program, whatever ends it.
set -eu

flights=10.77.0.1 weather=10.77.0.2 delays=10.77.0.3
hosts="$flights $weather $delays"
example=$(cd "$(dirname "$0")" && pwd)

main() {
    for program in ip nsenter setpriv unshare nebuli; do
        command -v $program > /dev/null || fail "There is no $program on PATH: install iproute2 and util-linux" \
            "(Debian: apt-get install iproute2 util-linux), and run this by make demo-hosts."
    done
    namespaces="--net --mount --pid --fork --kill-child --mount-proc"
    [ "$(id -u)" = 0 ] || namespaces="--map-root-user $namespaces"
    said=$(unshare $namespaces sh -c "mount -t tmpfs none /run && ip link add bridge type bridge" 2>&1) ||
        fail "Hosts cannot be made here ($said): run this as root (sudo make demo-hosts), in a container one that is" \
            "privileged."
    # With this process ends unshare, and with that all that is inside; killing either is enough.
    setpriv --pdeathsig KILL unshare $namespaces "$0" --inside &
    trap 'stop 129' HUP
    trap 'stop 130' INT
    trap 'stop 143' TERM
    wait $!
}

stop() {
    kill -KILL $! 2> /dev/null || true
    exit "$1"
}

fail() {
    echo "$*" >&2
    exit 1
}

inside() {
    mount -t tmpfs none /run
    make_network
    give_files
    start_workers
    id=$(on $delays nebuli start topology.yaml query.json)
    on $delays nebuli watch "$id" || fail_with_logs
    on $delays nebuli unregister "$id"
    stop_workers
}

make_network() {
    ip link add bridge type bridge
    ip link set bridge up
    for host in $hosts; do
        ip netns add $host
        port=port${host##*.}
        ip link add $port type veth peer name eth0 netns $host
        ip link set $port master bridge up
        ip -n $host address add $host/24 dev eth0
        ip -n $host link set lo up
        ip -n $host link set eth0 up
        mkdir /run/$host
    done
}

# One host makes certificates and the secret; each gets its own certificate, as by scp, and has data of its own.
give_files() {
    cp "$example/query.json" /run/$delays
    on $delays nebuli certs dev --host $flights --host $weather --host $delays > /dev/null
    secret="(umask 077; head -c 32 /dev/urandom | base64 > fleet.secret)"
    show $delays "$secret"
    (cd /run/$delays && eval "$secret")
    for host in $hosts; do
        mkdir /run/$host/data
        cp "$example/topology-hosts.yaml" /run/$host/topology.yaml
        cp /run/$delays/certs/$host.pem /run/$host/host.pem
        cp /run/$delays/certs/$host.key /run/$host/host.key
        cp /run/$delays/certs/authority.pem /run/$host
        [ $host = $delays ] || cp /run/$delays/fleet.secret /run/$host
    done
    cp "$example/data/flights.csv.zip" /run/$flights/data
    cp "$example/data/weather.csv" /run/$weather/data
}

start_workers() {
    workers=""
    for host in $hosts; do
        # The worker's output, where the result is printed, is this program's.
        show $host nebuli worker --topology topology.yaml --node $host:9001
        enter $host nebuli worker --topology topology.yaml --node $host:9001 2> /run/$host/log.txt &
        workers="$workers $!"
    done
    for host in $hosts; do
        until grep -q "worker ready" /run/$host/log.txt; do
            kill -0 $workers 2> /dev/null || fail_with_logs
            sleep 0.1
        done
    done
}

stop_workers() {
    kill $workers
    for worker in $workers; do
        wait $worker || fail_with_logs
    done
}

fail_with_logs() {
    for host in $hosts; do
        sed "s/^/$host: /" /run/$host/log.txt >&2
    done
    exit 1
}

# Show a command, and run it on a host.
on() {
    show "$@"
    (enter "$@")
}

show() {
    printf '%s$' $1 >&2
    shift
    echo " $*" >&2
}

# Become a command on a host: in a subshell, whose id is then the command's own.
enter() {
    cd /run/$1
    export XDG_STATE_HOME=/run/$1
    network=/run/netns/$1
    shift
    exec nsenter --net=$network -- "$@"
}

if [ "${1-}" = --inside ]; then
    inside
else
    main
fi
