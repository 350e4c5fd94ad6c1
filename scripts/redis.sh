#!/usr/bin/env bash
# Starts Redis servers for experiments, on the loopback address and in memory: a primary, its replica, and a cluster of
# three.
#
#   scripts/redis.sh [start]   starts the servers that do not run yet, and prints three lines to stdout: "primary ADDR",
#                              "replica ADDR" and "cluster ADDR ADDR ADDR"
#   scripts/redis.sh stop      stops them
#   scripts/redis.sh status    prints the lines if all servers run; otherwise exits with 1
#
# Example: SLUICE_REDIS=$(scripts/redis.sh | sed -n 's/^primary //p') go test ./internal/limiter/store/redis
# If SLUICE_REDIS is not set, the tests start servers of their own.
#
# It needs redis-server and redis-cli 7.0 or later. If they are missing, it tries to install Debian's packages.
# SLUICE_REDIS_PORT (default 17000) is the first of the servers' five ports. The three servers of the cluster each listen
# on another port, which is 10 higher, for the messages of the cluster. SLUICE_REDIS_HOME (default: the user's cache
# folder) has logs and process ids.
set -euo pipefail
port=${SLUICE_REDIS_PORT:-17000}
home=${SLUICE_REDIS_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/redis}/$port
ports=("$port" $((port + 1)) $((port + 2)) $((port + 3)) $((port + 4)))
cluster=("127.0.0.1:${ports[2]}" "127.0.0.1:${ports[3]}" "127.0.0.1:${ports[4]}")

ask() { redis-cli -h 127.0.0.1 -p "$@" 2>/dev/null; }

# ours PORT succeeds if the process id in the file belongs to a server that this script started on this port, and not to
# another program that has got the same number.
ours() {
  [ -f "$home/$1.pid" ] && tr '\0' ' ' <"/proc/$(cat "$home/$1.pid")/cmdline" 2>/dev/null | grep -q "redis-server.*:$1 "
}

require() {
  command -v redis-server >/dev/null && command -v redis-cli >/dev/null && return
  local sudo=()
  ((EUID == 0)) || sudo=(sudo -n)
  { "${sudo[@]}" apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends redis-server redis-tools; } >&2 ||
    { echo "redis: install redis-server and redis-cli" >&2; exit 1; }
}

launch() { # launch PORT OPTION...
  local at=$1
  shift
  ours "$at" && return
  if (exec 3<>"/dev/tcp/127.0.0.1/$at") 2>/dev/null; then
    echo "redis: port $at is taken by another program (set SLUICE_REDIS_PORT)" >&2
    exit 1
  fi
  rm -f "$home/$at.pid" "$home/$at.nodes"
  (cd "$home" && redis-server --port "$at" --bind 127.0.0.1 --save '' --appendonly no --daemonize yes --dir "$home" \
    --dbfilename "$at.rdb" --pidfile "$home/$at.pid" --logfile "$home/$at.log" --repl-diskless-sync-delay 0 "$@" >&2 9>&-)
  await "$at does not answer; see $home/$at.log" eval "[ \"\$(ask $at PING)\" = PONG ]"
}

await() { # await MESSAGE COMMAND...
  local message=$1
  shift
  for _ in $(seq 100); do
    "$@" && return
    sleep 0.1
  done
  echo "redis: $message" >&2
  exit 1
}

formed() { ask "${ports[2]}" CLUSTER INFO | grep -q 'cluster_state:ok' && ask "${ports[2]}" CLUSTER INFO | grep -q 'cluster_size:3'; }

report() {
  echo "primary 127.0.0.1:${ports[0]}"
  echo "replica 127.0.0.1:${ports[1]}"
  echo "cluster ${cluster[*]}"
}

running() {
  local p
  for p in "${ports[@]}"; do
    ours "$p" && [ "$(ask "$p" PING)" = PONG ] || return 1
  done
}

start() {
  require
  mkdir -p "$home"
  exec 9>"$home/lock"
  flock 9
  launch "${ports[0]}"
  launch "${ports[1]}" --replicaof 127.0.0.1 "${ports[0]}"
  local p
  for p in "${ports[@]:2}"; do
    launch "$p" --cluster-enabled yes --cluster-config-file "$home/$p.nodes" --cluster-port $((p + 10))
  done
  formed || redis-cli --cluster create "${cluster[@]}" --cluster-yes >&2
  await "the cluster does not form" formed
  await "the replica is not connected to its primary" eval "ask ${ports[1]} INFO replication | grep -q master_link_status:up"
  report
}

stop() {
  local p pid
  for p in "${ports[@]}"; do
    if ours "$p"; then
      pid=$(cat "$home/$p.pid")
      kill "$pid" 2>/dev/null || true
      for _ in $(seq 50); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
      done
      if ours "$p"; then kill -9 "$pid"; fi
    fi
    rm -f "$home/$p.pid" "$home/$p.nodes" "$home/$p.rdb"
  done
}

case ${1:-start} in
start) start ;;
stop) stop ;;
status) if running; then report; else exit 1; fi ;;
*) echo "usage: $0 [start|stop|status]" >&2; exit 2 ;;
esac
