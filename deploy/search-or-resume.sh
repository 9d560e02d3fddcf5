#!/usr/bin/env bash
# search-or-resume.sh RUN [COMMAND] ARGUMENTS: start what leaves its folder at RUN, or go on with it if RUN is there.
#
# COMMAND is any of fedtune's that trains on a cluster: search (the default), compare, reproduce, tabulate, resume or
# replay.  For systems that start a job again after a time limit, a preemption or a dead node: the same command line,
# given any number of times, runs every trial once.  It joins the Ray cluster that it runs in.  Of a finished search it
# says so and ends as the search did.  With STOP_FILE in the environment the command ends as by Ctrl-C once that file is
# there.
set -euo pipefail

run=${1:?which folder is the run\'s}
shift
command=search
case ${1:--} in
    -*) ;;
    *) command=$1 && shift ;;
esac
place=(--storage-path "$(dirname "$run")" --name "$(basename "$run")" --address auto)
case $command in
    search | compare) words=(python -m fedtune "$command" "$@" "${place[@]}") ;;
    reproduce | tabulate) words=(python -m "fedtune.analysis.$command" "$@" "${place[@]}") ;;
    resume | replay) words=(python -m fedtune "$command" "$@" --name "$(basename "$run")" --address auto) ;;
    *) echo "error: a command must be search, compare, reproduce, tabulate, resume or replay, but got $command" >&2
        exit 2 ;;
esac
for record in "$run/run.json" "$run/compare.json"; do
    [ -e "$record" ] || continue
    state=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["state"])' "$record")
    case $state in
        finished) echo "$run is finished" && exit 0 ;;
        "nothing found") echo "$run is over: nothing found" >&2 && exit 1 ;;
    esac
    words=(python -m fedtune resume "$run" --address auto)
done
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
exec "${words[@]}"
