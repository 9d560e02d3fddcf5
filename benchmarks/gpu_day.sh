#!/usr/bin/env bash
# What is to be done in a quarter of an hour on a GPU: one command of at most eight minutes, the most valuable first.
#
#   bash benchmarks/gpu_day.sh [RESULTS.md]        in the project's root; without Ray and without a network
#
# Each step has its own time limit, a failing one stops no other, and the file of results is written as it goes.
#   DEVICE   cuda (default), or cpu to rehearse
#   PYTHON   the interpreter that has PyTorch (default python3)
#   WHEELS   a folder of wheels for what that interpreter lacks; the first step says what that is
#   ROUNDS   fewer rounds of the two whole runs, to rehearse
#   FEDTUNE_DATA_DIR   where FashionMNIST/raw lies (default data, shared/data or
#            ../shared/data); its files may be gzipped, as a machine may take 64 MiB and no more
# shellcheck disable=SC2046,SC2086  # commands are made of words
set -uo pipefail
cd "$(dirname "$0")/.." || exit
device=${DEVICE:-cuda} python=${PYTHON:-python3} results=${1:-gpu_day.md} most=470
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$work"' EXIT
begin=$SECONDS failed=0
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 COLUMNS=120
export OMP_NUM_THREADS=1  # else the runs on the CPU and the tests' workers wait for one another's threads: 7 tests in 150 s

export PYTHONPATH=$PWD
if [ -n "${WHEELS:-}" ]; then
  for wheel in "$WHEELS"/*.whl; do "$python" -m zipfile -e "$wheel" "$work/wheels"; done
  PYTHONPATH=$PWD:$work/wheels
fi

for data in "${FEDTUNE_DATA_DIR:-}" data shared/data ../shared/data; do
  [ -n "$data" ] && [ -d "$data/FashionMNIST/raw" ] && break
done
mkdir -p "$work/data/FashionMNIST/raw"
for file in "$data"/FashionMNIST/raw/*-ubyte*; do
  case $file in
    *.gz) gunzip -c "$file" >"$work/data/FashionMNIST/raw/$(basename "$file" .gz)" ;;
    *) ln -s "$(realpath "$file")" "$work/data/FashionMNIST/raw/" ;;
  esac
done
export FEDTUNE_DATA_DIR=$work/data

say() { printf '%s\n' "$@" | tee -a "$results"; }

# step NAME LIMIT COMMAND…: run it for at most LIMIT seconds of those that are left, and write down how it ended
step() {
  local name=$1 limit=$2 left=$((most - SECONDS + begin)) began=$SECONDS status
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  say "" "## $name" "" "    $*" "" '```'
  if [ "$limit" -lt 5 ]; then
    say "left out: no time is left"
    status=124
  else
    timeout -k 5 "$limit" "$@" 2>&1 | tee -a "$results"
    status=${PIPESTATUS[0]}
  fi
  say '```' "status $status after $((SECONDS - began)) s of $limit"
  echo "$status $((SECONDS - began)) $name" >>"$work/steps"
  [ "$status" = 0 ] || failed=1
}

# whole ALGORITHM SCENARIO DEVICE: one whole run, its rows in a file
whole() {
  echo "$python" -m fedtune run --algo "$1" --scenario "$2" ${ROUNDS:+--rounds $ROUNDS} --test-every 1 --device "$3" \
    --output "$work/$1-$3$4.jsonl"
}

: >"$results"
say "# A day on a GPU: $device, $(date -u +%Y-%m-%dT%H:%MZ), $(git rev-parse --short HEAD 2>/dev/null || echo no git)"
step machine 60 "$python" -m benchmarks.gpu_day machine

# the same two runs on the CPU, meanwhile
declare -A twin
for run in "gfpl gfpl-fmnist-w4" "fedpa fedpa-fmnist-a0.3"; do
  set -- $run
  timeout 400 $(whole $run cpu -twin) >"$work/$1-cpu.log" 2>&1 &
  twin[$1]=$!
done

workers=$("$python" -c 'import os, xdist; print("-n", max(1, min(12, os.cpu_count() - 2)))' 2>/dev/null)
step "the same numbers as on the CPU" 200 env PYTHONPATH="$PYTHONPATH:$PWD/tests" "$python" -m pytest -q -c /dev/null \
  --rootdir . --import-mode=importlib --noconftest -p no:cacheprovider -p no:benchmark $workers tests/engine/test_cuda.py
step "GFPL, a whole run" 90 $(whole gfpl gfpl-fmnist-w4 "$device" "")
step "FedPA, a whole run" 120 $(whole fedpa fedpa-fmnist-a0.3 "$device" "")
step "the engine against plain PyTorch" 90 "$python" -m benchmarks.engine --device "$device" --repeats 2
step "seeds as one stack" 60 "$python" -m benchmarks.seeds --device "$device" --turns 2
step "a trial's share of the memory" 40 "$python" -m benchmarks.gpu_day memory --device "$device"
step "the same run twice" 40 "$python" -m benchmarks.gpu_day twice --device "$device"
for name in gfpl fedpa; do
  while kill -0 "${twin[$name]}" 2>/dev/null && [ $((SECONDS - begin)) -lt $((most - 15)) ]; do sleep 1; done
  step "$name on $device against the CPU" 15 "$python" -m benchmarks.gpu_day compare \
    "$work/$name-cpu-twin.jsonl" "$work/$name-$device.jsonl"
  say "on the CPU: $(grep ^after "$work/$name-cpu.log")"
done

say "" "## All steps in $((SECONDS - begin)) s" "" "| step | status | s |" "|---|---|---|"
while read -r status seconds name; do say "| $name | $status | $seconds |"; done <"$work/steps"
exit $failed
