#!/bin/bash
# Measures this machine in one go: rehearse-probe, PyTorch's attention kernels, and training steps of small real models.
# Usage: calibrate/measure_all.sh OUT [--budget SECONDS] [--probe FILE] [--python PYTHON]
#   OUT         folder for the results; run again with the same one to go on (it is made)
#   --budget    for everything together, building included (default 540)
#   --probe     a rehearse-probe that was built elsewhere; default: build/cuda's, or one that is built there now
#   --python    a Python with PyTorch (default python3); without it only the probe runs
# Needs one NVIDIA GPU with its driver; to build the probe also nvcc, and the headers of cuBLASLt, NCCL and nlohmann-json
# (pip's nvidia-* packages will do for the first two). No root, nothing is installed, nothing leaves OUT but the build.
# Each part has its share of the time and is stopped at it; what it has measured by then is kept.
# Writes: measurements.json attention.json runs.csv details.jsonl details.tar.gz machine.txt log.txt
# Exit codes: 0 something was measured, 2 bad arguments, 3 nothing could be measured.
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
say() { printf 'measure_all.sh: %s\n' "$*" >&2; }

out= budget=540 probe= python=python3
while [ $# -gt 0 ]; do
  case $1 in
    --budget | --probe | --python)
      [ $# -ge 2 ] || { say "$1 needs a value"; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift 2 ;;
    -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) say "unknown option $1; see --help"; exit 2 ;;
    *) [ -z "$out" ] || { say "one folder only"; exit 2; }; out=$1; shift ;;
  esac
done
[ -n "$out" ] || { say "name a folder for the results; see --help"; exit 2; }
[[ $budget =~ ^[0-9]+$ ]] && [ "$budget" -gt 0 ] || { say "--budget: \"$budget\" is not a number of seconds"; exit 2; }
[ -z "$probe" ] || [ -x "$probe" ] || { say "--probe: $probe is no program"; exit 2; }
mkdir -p "$out" && out=$(cd "$out" && pwd) || { say "cannot make $out"; exit 2; }
begin=$SECONDS
left() { echo $((budget - (SECONDS - begin))); }
work=$out/details
mkdir -p "$work"
exec > >(tee -a "$out/log.txt") 2>&1
log=$!
trap 'exec >&- 2>&-; wait "$log"' EXIT  # its last lines

have_torch=no
if "$python" -c 'import torch' 2>/dev/null; then have_torch=yes; else say "$python has no PyTorch: attention and training steps are left out"; fi
# Libraries that pip brought: cuBLASLt and NCCL.
wheels=$("$python" -c 'import nvidia; print("\n".join(nvidia.__path__))' 2>/dev/null)
hints=
for folder in $wheels; do
  for package in "$folder"/*/; do
    if [ -d "$package/lib" ]; then LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${package}lib; fi
    if [ -d "$package/include" ]; then hints=${hints:+$hints;}${package%/}; fi
  done
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

build_probe() {
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { say "no nvcc: the probe cannot be built here (--probe FILE takes one built elsewhere)"; return 1; }
  (cd "$root" && timeout "$1" cmake -S calibrate -B build/cuda -DREHEARSE_CUDA_ARCHITECTURES=native "-DREHEARSE_CUDA_HINTS=$hints" &&
    timeout "$1" cmake --build build/cuda -j "$(nproc)") >"$work/build.log" 2>&1 ||
    { say "the probe could not be built:"; grep -m5 -iE 'error|missing' "$work/build.log" || tail -n 5 "$work/build.log"; return 1; }
}
if [ -z "$probe" ]; then
  probe=$root/build/cuda/rehearse-probe
  [ -x "$probe" ] || { say "building the probe"; build_probe $((budget / 3)) || probe=; }
fi

# What the machine is, without serial numbers and host names.
{
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,temperature.gpu,pcie.link.gen.current,pcie.link.width.current,ecc.mode.current --format=csv
  [ $have_torch = no ] || "$python" -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())'
} >"$out/machine.txt" 2>&1
cat "$out/machine.txt"

if [ -n "$probe" ]; then timeout 60 "$probe" --self-test || say "the self-test ended with code $?"; fi

# Two fifths of what is left for the probe, an eighth for attention, the rest for training steps.
if [ -n "$probe" ]; then
  share=$(left)
  if [ $have_torch = yes ]; then share=$((share * 2 / 5)); fi
  # The quick run's series come first; then as many more as there is time for, with its coarser rule unless time is ample.
  rule=(--target-error 0.02 --series-cap 0.3)
  [ "$share" -lt 900 ] || rule=()
  # It stops by itself between two series; the kill is for one that hangs.
  timeout --signal=INT --kill-after=20 $((share + 30)) "$probe" "${rule[@]}" --budget "$share" --directory "$work" --out "$out/measurements.json" ||
    say "the probe ended with code $?"
fi
if [ $have_torch = yes ]; then
  share=$(($(left) / 5))
  timeout --signal=INT --kill-after=10 $((share + 20)) "$python" "$root/calibrate/ground_truth/attention.py" --budget "$share" --out "$out/attention.json" ||
    say "attention.py ended with code $?"
  share=$(left)
  [ "$share" -lt 20 ] || timeout --signal=INT --kill-after=10 "$share" "$python" "$root/calibrate/ground_truth/measure.py" --budget $((share - 10)) --out "$work" ||
    say "measure.py ended with code $?"
  for file in runs.csv details.jsonl; do [ ! -f "$work/$file" ] || cp "$work/$file" "$out/$file"; done
fi
tar -C "$out" -czf "$out/details.tar.gz.part" details && mv "$out/details.tar.gz.part" "$out/details.tar.gz"
say "$((SECONDS - begin)) s; results in $out"
for file in measurements.json attention.json runs.csv; do [ ! -s "$out/$file" ] || exit 0; done
say "nothing could be measured"
exit 3
