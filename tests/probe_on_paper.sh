#!/bin/bash
# The probe's real host code over a GPU on paper (fakes/cuda): every series of the longest plan, on one GPU and on eight.
# Usage: tests/probe_on_paper.sh PROGRAM. Exit code 1 and the reason when the GPU refused something or a series is missing.
set -u
program=$(realpath "$1")
LD_LIBRARY_PATH=$(dirname "$program")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
# measure GPUS NAME PATTERNS [OPTIONS]: all of it must be measured.
measure() {
  PAPER_GPUS=$1 timeout 300 "$program" --full --series-cap 0.001 --only "$3" --out "$2.json" "${@:4}" >"$2.log" 2>&1 ||
    { echo "FAILED $2: exit $?"; tail -n 3 "$2.log"; failed=1; return; }
  grep -q ', 0 not possible here, 0 left' "$2.log" || { echo "FAILED $2:"; grep -m5 'not measured' "$2.log"; tail -n 1 "$2.log"; failed=1; }
}
# The graphs first: their kernel's code must not be loaded inside the capture.
measure 1 graphs "graph_launch"
measure 1 kernels "kernel_launch,gemm,memory_kernel,attention"
measure 1 copies "transfer,overlap"
[ ! -e "$(dirname "$program")/libnccl.so" ] || measure 8 team "collective,overlap,peer,transfer*gpus"
# A small GPU, as full as may be: what does not fit is said, and nothing is refused.
PAPER_GIB=3 timeout 300 "$program" --full --series-cap 0.001 --only "gemm,memory_kernel,attention,transfer,overlap" --out small.json >small.log 2>&1 ||
  { echo "FAILED small: exit $?"; tail -n 3 small.log; failed=1; }
PAPER_GIB=2 timeout 60 "$program" --quick --out none.json >none.log 2>&1
[ $? -eq 3 ] && grep -q 'less than 2 GiB of its memory are free' none.log || { echo "FAILED none:"; cat none.log; failed=1; }
[ $failed -eq 0 ] && echo "every series of the longest plan was prepared and run"
exit $failed
