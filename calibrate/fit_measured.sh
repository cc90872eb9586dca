#!/bin/bash
# What measure_all.sh brought home, fitted and judged; needs no GPU, so run it where rehearse is built.
# Usage: calibrate/fit_measured.sh OUT [REHEARSE]
#   OUT        the folder that measure_all.sh filled
#   REHEARSE   the program (default: build/release/rehearse of this tree)
# Writes into OUT: fitted/ (gpu.yaml and what else `calibrate fit` writes), before.txt and after.txt (`validate` on runs.csv with
# our data of this GPU, and with the fitted file). Prints the fit's errors by operation and both summaries.
# Exit codes: those of rehearse; 2 bad arguments.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
[ $# -ge 1 ] && [ $# -le 2 ] && [ -d "$1" ] || { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit 2; }
out=$1 rehearse=${2:-$root/build/release/rehearse}
[ -x "$rehearse" ] || { echo "fit_measured.sh: $rehearse is no program; build it, or name another" >&2; exit 2; }
measured=()
for file in measurements.json attention.json; do [ ! -s "$out/$file" ] || measured+=("$out/$file"); done
[ ${#measured[@]} -gt 0 ] || { echo "fit_measured.sh: $out holds neither measurements.json nor attention.json" >&2; exit 2; }
"$rehearse" calibrate fit "${measured[@]}" --out "$out/fitted" || exit $?
[ -s "$out/runs.csv" ] || { echo "fit_measured.sh: no training steps in $out: nothing to judge the fit by" >&2; exit 0; }
"$rehearse" validate "$out/runs.csv" -o "$out/before.txt" && "$rehearse" validate "$out/runs.csv" --gpu "$out/fitted/gpu.yaml" -o "$out/after.txt" || exit $?
for when in before after; do echo; echo "$when:"; head -n 3 "$out/$when.txt"; done
