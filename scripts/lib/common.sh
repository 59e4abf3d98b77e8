# shellcheck shell=bash
# Sourced by the scripts beside this folder: where things are, and how steps are reported.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
MESHNET_HOME=${MESHNET_HOME:-$HOME/.cache/meshnet}
export MESHNET_HOME
# shellcheck disable=SC2034 # used by those who source this
PYTHON=$ROOT/.venv/bin/python
LOG_FILE=$MESHNET_HOME/log/$(basename "$0").$$.log
mkdir -p "$MESHNET_HOME/log"

# Logs of runs that went well are of no use; the last failures are kept. Another clone may delete the same file.
find "$MESHNET_HOME/log" -name '*.log' -mtime +7 -delete 2>/dev/null || true

ticker=
stop_ticker() {
  [[ -z $ticker ]] || kill "$ticker" 2>/dev/null || true
  ticker=
}

scratch=() # temporary folders, gone at the end however it comes
trap 'stop_ticker; ((${#scratch[@]} == 0)) || rm -rf "${scratch[@]}"' EXIT

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

# step "TEXT" "WHAT TO DO WHEN IT FAILS" COMMAND...: one line per step, a dot every five seconds
# while it runs. The command's own output goes to the log, which only a failure shows.
step() {
  local text=$1 advice=$2 started=$SECONDS status=0
  shift 2
  printf '%s ..' "$text"
  # The ticker ends by itself if this script is killed.
  (while sleep 5 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do printf '.'; done) &
  ticker=$!
  "$@" >"$LOG_FILE" 2>&1 </dev/null || status=$?
  stop_ticker
  if ((status != 0)); then
    printf ' failed (exit %d)\n' "$status"
    tail -n 15 "$LOG_FILE" | sed 's/^/    /' >&2
    fail "$advice" "The whole output: $LOG_FILE"
  fi
  rm -f "$LOG_FILE"
  printf ' %d s\n' "$((SECONDS - started))"
}
