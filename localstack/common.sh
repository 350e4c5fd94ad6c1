# Sourced by localstack/up and localstack/down: folders, and which processes belong to a stand, which is all that one
# localstack/up started. The comment in localstack/up explains the variables.
# shellcheck shell=bash
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
me=localstack/$(basename "$0")
home=${SLUICE_LOCALSTACK_HOME:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/sluice/localstack}
port=${SLUICE_LOCALSTACK_PORT:-4566}
redis_port=${SLUICE_LOCALSTACK_REDIS_PORT:-6390}
run=$home/run-$port
endpoint=http://127.0.0.1:$port

say() { printf '%s: %s\n' "$me" "$*" >&2; }

die() {
  say "$@"
  exit 1
}

usage() {
  say "$1; usage: $2"
  exit 2
}

is_port() { [[ $1 =~ ^[1-9][0-9]{0,4}$ ]] && (($1 <= 65535)); }

check_settings() {
  [[ $OSTYPE == linux* ]] || die "this needs Linux; elsewhere run LocalStack's container and set SLUICE_LOCALSTACK to its endpoint"
  is_port "$port" || die "SLUICE_LOCALSTACK_PORT is '$port', want a port, 1 to 65535"
  is_port "$redis_port" || die "SLUICE_LOCALSTACK_REDIS_PORT is '$redis_port', want a port, 1 to 65535"
  [[ $port != "$redis_port" ]] || die "SLUICE_LOCALSTACK_PORT and SLUICE_LOCALSTACK_REDIS_PORT are both $port"
  [[ $home == /* ]] || die "SLUICE_LOCALSTACK_HOME is '$home', want an absolute path"
  require flock util-linux
  mkdir -p "$home" 2>/dev/null && [[ -w $home ]] || die "cannot write to $home: set SLUICE_LOCALSTACK_HOME to a folder that can be written"
  # Processes are told by the paths that the kernel has, which have no symbolic links in them.
  home=$(cd "$home" && pwd -P)
  run=$home/run-$port
}

require() { # require COMMAND PACKAGE
  command -v "$1" >/dev/null || die "$1 is missing: install it (Debian: $2)"
}

# lock lets only one up or down run at a time. Processes are started with descriptor 9, the lock, closed.
lock() {
  exec 9>"$home/lock"
  flock -n 9 && return
  say 'another up or down is at work: waiting for it'
  flock 9
}

# stand RUN: prints the ids of all processes of the stand with the folder RUN. LocalStack, its JVM and Redis have the
# variable SLUICE_LOCALSTACK_RUN. Functions must not see the variable; their programs are below the folder.
stand() {
  {
    grep -lszxF "SLUICE_LOCALSTACK_RUN=$1" /proc/[0-9]*/environ || true
    find /proc/[0-9]*/exe -maxdepth 0 -lname "$1/*" 2>/dev/null || true
  } | cut -d/ -f3 | sort -un
}

# alive NAME: prints the id in $run/NAME.pid if it is still a process of this stand, and not another program that has got
# the same number.
alive() {
  local pid
  pid=$(cat "$run/$1.pid" 2>/dev/null) && [[ $pid =~ ^[0-9]+$ ]] &&
    grep -qszxF "SLUICE_LOCALSTACK_RUN=$run" "/proc/$pid/environ" && printf '%s\n' "$pid"
}

# await SECONDS COMMAND...
await() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}

# signal NAME: sends a signal to every process of the stand, and ignores processes that have ended.
signal() {
  local pid
  for pid in $(stand "$run"); do kill -s "$1" "$pid" 2>/dev/null || true; done
}

gone() { [[ -z $(stand "$run") ]]; }

# ended PID: succeeds if the process does not exist, or is a zombie.
ended() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  [[ ${stat##*) } == [ZX]* ]]
}

# finish ends every process of the stand and removes its folder. It ends LocalStack first, so that LocalStack ends its
# functions as Lambda does.
finish() {
  local pid
  if [[ -e $run/ready ]] && pid=$(alive localstack); then # while it starts, it does not listen to SIGTERM
    kill "$pid" 2>/dev/null || true
    await 15 ended "$pid" || say "LocalStack did not end when asked, so it is killed"
  fi
  if ! gone; then
    signal TERM
    await 2 gone || signal KILL
    await 10 gone || die "these processes do not end: $(stand "$run" | tr '\n' ' ')"
  fi
  # A function that ends may still write its last line.
  rm -rf "$run" 2>/dev/null || rm -rf "$run"
}
