#!/usr/bin/env bash
# search-or-resume.sh RUN SEARCH ARGUMENTS: start a search whose folder is RUN, or resume it if RUN is there.
#
# For systems that start a job again after a time limit, a preemption or a dead node: the same command line, given any
# number of times, runs every trial once.  It joins the Ray cluster that it runs in.  Of a finished search it says
# so and ends as the search did.  With STOP_FILE in the environment the search ends as by Ctrl-C once that file is
# there.
set -euo pipefail

run=${1:?which folder is the run\'s}
shift
if [ -e "$run/run.json" ]; then
    state=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["state"])' "$run/run.json")
    case $state in
        finished) echo "$run is finished"; exit 0 ;;
        "nothing found") echo "$run is over: nothing found" >&2; exit 1 ;;
    esac
    command=(python -m fedtune.resume "$run" --address auto)
else
    where=(--storage-path "$(dirname "$run")" --name "$(basename "$run")" --address auto)
    command=(python -m fedtune.search "$@" "${where[@]}")
fi
if [ -n "${STOP_FILE:-}" ]; then
    driver=$$ # exec keeps it
    (
        until [ -e "$STOP_FILE" ]; do
            kill -0 "$driver" 2>/dev/null || exit 0
            sleep 0.5
        done
        kill -TERM "$driver"
    ) &
fi
exec "${command[@]}"
