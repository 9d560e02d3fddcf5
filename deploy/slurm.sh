#!/usr/bin/env bash
# A search, or another command, as a Slurm job: Ray on all its nodes for as long as it lasts, ended in time and begun
# again where it was.
#
#   cd /shared/fedtune            # a checkout that all nodes see, with its .venv (README.md, "Two commands")
#   sbatch --nodes=2 deploy/slurm.sh --algo gfpl --space default --trials 64 --gpus-per-trial 0.5
#
#   sbatch --nodes=4 --gpus-per-node=8 --cpus-per-task=64 deploy/slurm.sh --algo gfpl --trials 256 --gpus-per-trial 0.5
#   sbatch --nodes=2 deploy/slurm.sh compare --algos gfpl,fedproto,fedavg --trials 32 --gpus-per-trial 0.5
#
# What follows slurm.sh is a command (compare, reproduce, tabulate, extend, replay; none: search) and its arguments.  A
# trial takes a CPU (--cpus-per-trial), so a node has room for the fewer of its CPUs and its GPUs' shares: 8 GPUs at 0.5
# are 16 trials and want 16 CPUs, or GPUs stay idle; 64 feed each trial with four threads (--cpus-per-trial 4).  A
# job that cannot use a GPU for want of CPUs is refused before it starts Ray.
#
# The study's folder is $FEDTUNE_RUN, where all nodes see it (default:
# runs/NAME-ID of the job in the checkout); a search that is there goes on, so after a job was cancelled
#
#   FEDTUNE_RUN=runs/fedtune-4711 sbatch deploy/slurm.sh
#
# does the rest.  Data sets lie in $FEDTUNE_DATA_DIR.  Change what follows to your site, here or on sbatch's command
# line.
#SBATCH --job-name=fedtune
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1       # a task is a node of Ray; leave it
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1         # without GPUs: sbatch --gpus-per-node=0
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@120       # so long before the end the search writes down what it has
#SBATCH --requeue                 # … and the job goes back into the queue, also when a node dies or it is preempted
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

# Do the CPUs and GPUs of a node fit each other?  Both shares of a trial are read off the command line.
share() { # NAME DEFAULT ARGUMENTS: the value of --NAME
    local name=$1 value=$2 word
    shift 2
    for word; do
        if [[ $word == "--$name="* ]]; then value=${word#*=}; elif [ "${previous:-}" = "--$name" ]; then value=$word; fi
        local previous=$word
    done
    echo "$value"
}
awk -v cpus="$SLURM_CPUS_PER_TASK" -v gpus="${SLURM_GPUS_ON_NODE:-0}" \
    -v cpu="$(share cpus-per-trial 1 "$@")" -v gpu="$(share gpus-per-trial 0 "$@")" 'BEGIN {
    if (gpu == "auto" || gpus == 0) exit
    if (gpu == 0) { print "note: " gpus " GPUs a node, of which trials use none: give --gpus-per-trial"; exit }
    wanted = int(gpus / gpu) * cpu
    if (int(cpus / cpu) * gpu <= gpus - 1) {
        print "error: " int(gpus / gpu) " trials fit into " gpus " GPUs, and need " wanted " CPUs, but a node has " cpus \
            "; give sbatch --cpus-per-task=" wanted ", or a larger --gpus-per-trial"
        exit 2
    }
    if (wanted > cpus)
        print "note: " int(gpus / gpu) " trials fit into " gpus " GPUs, but only " int(cpus / cpu) " into " cpus " CPUs"
}' >&2

here=$SLURM_SUBMIT_DIR
run=$(realpath -m "${FEDTUNE_RUN:-$here/runs/$SLURM_JOB_NAME-$SLURM_JOB_ID}")
storage=$(dirname "$run")
# Does your site want modules (module load python/3.12 cuda/12.6), here is the place.  See deploy/README.md, "The image".
# shellcheck disable=SC1091
source "${FEDTUNE_VENV:-$here/.venv}/bin/activate"
mkdir -p "$storage"

# Ray asks everybody for this token; only its owner can read the file, and nothing prints it.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$storage/.token-$SLURM_JOB_ID RAY_USAGE_STATS_ENABLED=0
rm -f "$RAY_AUTH_TOKEN_PATH"
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 -v | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")

# Each try has a folder of its own on every node: Ray's logs, sockets and the address that drivers look for.
export RAY_TMPDIR=/tmp/fedtune-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
export STOP_FILE=$RAY_TMPDIR/stop
srun mkdir -m 700 "$RAY_TMPDIR" # not -p: what is there already could be somebody else's

# Ports that nothing has on this node, which is Ray's head; all others are left to the system.
read -r port dashboard client < <(python -c '
import socket
held = [socket.create_server(("", 0)) for _ in range(3)]
print(*(s.getsockname()[1] for s in held))')
if [ "$SLURM_JOB_NUM_NODES" -eq 1 ]; then
    address=127.0.0.1
    export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 # in spite of its name: Ray listens on loopback only
else
    address=$(getent ahostsv4 "$(hostname)" | awk '!found && $1 !~ /^127\./ { found = $1 } END { print found }')
fi
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 # seconds; Python starts slowly from a shared disk

# Ray refuses to start where it sees another Ray, and when it stops it stops all of a user's.  In a process namespace of
# its own it sees itself alone, and nothing is left when the job ends, however it does.  Where the system has none for
# users, take whole nodes: #SBATCH --exclusive.
apart=(unshare --user --map-current-user --pid --fork --kill-child --mount-proc)
if ! srun "${apart[@]}" true 2>/dev/null; then
    apart=()
    echo "note: no process namespaces here; another Ray on one of these nodes would end this job, or be ended by it"
fi

echo "run: $run"
echo "dashboard: ssh -L 8265:127.0.0.1:$dashboard $(hostname), then http://127.0.0.1:8265; token: $RAY_AUTH_TOKEN_PATH"
told=
trap 'told=yes; touch "$STOP_FILE"' TERM
# The search's own exit status comes in a file: Ray's is 1 on several nodes, and srun's is that of whoever ended worst.
# A worker that ends early does not end the others, its trials go on there.  bash stands before Ray so that something
# reaps the namespace's orphans.
# shellcheck disable=SC2016
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --wait=0 \
    "${apart[@]}" bash -c '"$@" & wait $!' ray \
    ray symmetric-run --address "$address:$port" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" \
    --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" --ray-client-server-port="$client" \
    --dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0 --disable-usage-stats \
    -- bash -c 'bash "$@"; echo $? >"$0"' "$RAY_TMPDIR/status" "$here/deploy/search-or-resume.sh" "$run" "$@" \
    > >(grep -v --line-buffered "VINFO scripts.py:") 2>&1 & # ray stop shows the command line of all that it stops
step=$!
running() { kill -0 "$step" 2>/dev/null; }
while running && [ ! -s "$RAY_TMPDIR/status" ]; do sleep 2; done
for _ in {1..20}; do # for Ray to end on its own; its workers take a minute to see that the head is gone
    ! running || sleep 1
done
! running || kill "$step"
status=1
[ ! -s "$RAY_TMPDIR/status" ] || status=$(<"$RAY_TMPDIR/status")

if [ -z "$told" ] && [ "$status" -ne 0 ]; then # Ray's logs may say why
    # shellcheck disable=SC2016
    srun bash -c 'mkdir -p "$2" && cp -r "$1/ray/session_latest/logs" "$2/$(hostname)"' logs \
        "$RAY_TMPDIR" "$storage/.ray-logs-$SLURM_JOB_ID" || true
fi
srun rm -rf "$RAY_TMPDIR" || true
rm -f "$RAY_AUTH_TOKEN_PATH"
if [ -n "$told" ] && [ "$status" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
