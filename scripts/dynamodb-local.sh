#!/usr/bin/env bash
# DynamoDB Local for the tests, on the loopback address, in memory, without Docker.
#
#   scripts/dynamodb-local.sh [start]   starts it unless it runs already; prints its endpoint, nothing else, on stdout
#   scripts/dynamodb-local.sh stop      stops it
#   scripts/dynamodb-local.sh status    prints the endpoint if it runs, else exits 1
#   scripts/dynamodb-local.sh jars      installs its jars unless they are there; prints their folder
# Example: SLUICE_DYNAMODB=$(scripts/dynamodb-local.sh) go test ./internal/limiter/store/dynamodb
#
# Needs Java 17 or later with its compiler, and mvn. SLUICE_DYNAMODB_PORT (default 18000) is its port.
# SLUICE_DYNAMODB_HOME (default: the user's cache folder) is the folder of its jars, its log and its process id.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${SLUICE_DYNAMODB_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice/dynamodb-local}
port=${SLUICE_DYNAMODB_PORT:-18000}
endpoint=http://127.0.0.1:$port
jars=$home/jars-$(sha256sum "$here/dynamodb-local.xml" | cut -c1-12)
pidfile=$home/$port.pid
log=$home/$port.log

# ours succeeds if the process id in the file belongs to a server that this script started on this port, and not to
# another program that has got the same number.
ours() {
  [ -f "$pidfile" ] && [ "$(cat "$pidfile")" ] &&
    ps -o args= -p "$(cat "$pidfile")" | grep -q "dynamodb-local.java $port\$"
}

# answers succeeds if the server is up: DynamoDB answers an unsigned request with status 400.
answers() {
  [ "$(curl -s -m 2 -o /dev/null -w '%{http_code}' "$endpoint/" || true)" = 400 ]
}

require() {
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { echo "dynamodb-local: $tool is not installed" >&2; exit 1; }
  done
}

install_jars() {
  ls "$jars"/DynamoDBLocal-*.jar >/dev/null 2>&1 && return
  local part
  require mvn
  mkdir -p "$home"
  part=$(mktemp -d "$home/part.XXXXXX")
  mvn -q -B -Dstyle.color=never -f "$here/dynamodb-local.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$part" >&2 || { rm -rf "$part"; exit 1; }
  # The native SQLite libraries come as artifacts of their own, beside the jars, where the server looks for them.
  ls "$part"/libsqlite4java-linux-*.so >/dev/null
  mv -T "$part" "$jars" 2>/dev/null || rm -rf "$part" # another start was faster
}

start() {
  require java javac curl setsid flock
  mkdir -p "$home"
  exec 9>"$home/$port.lock"
  flock 9
  if ours && answers; then
    echo "$endpoint"
    return
  fi
  if answers || (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "dynamodb-local: port $port is taken by another program (set SLUICE_DYNAMODB_PORT)" >&2
    exit 1
  fi
  install_jars
  (cd "$home" && exec setsid java -Xmx768m -Dsqlite4java.library.path="$jars" -Dorg.eclipse.jetty.LEVEL=WARN \
    -cp "$jars/*" "$here/dynamodb-local.java" "$port" \
    >"$log" 2>&1 </dev/null 9>&-) &
  echo $! >"$pidfile"
  for _ in $(seq 240); do
    answers && { echo "$endpoint"; return; }
    kill -0 "$(cat "$pidfile")" 2>/dev/null || break
    sleep 0.25
  done
  echo "dynamodb-local: the server did not come up; the end of $log:" >&2
  tail -n 20 "$log" >&2
  exit 1
}

stop() {
  if ours; then
    local pid
    pid=$(cat "$pidfile")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 40); do
      ours || break
      sleep 0.25
    done
    if ours; then kill -9 "$pid"; fi
  fi
  rm -f "$pidfile"
}

case ${1:-start} in
start) start ;;
stop) stop ;;
status) if ours && answers; then echo "$endpoint"; else exit 1; fi ;;
jars)
  install_jars
  echo "$jars"
  ;;
*) echo "usage: $0 [start|stop|status|jars]" >&2; exit 2 ;;
esac
