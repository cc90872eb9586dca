#!/bin/bash
# Measures this machine in one go: rehearse-probe, PyTorch's attention kernels, and training steps of small real models.
# Usage: calibrate/measure_all.sh OUT [--budget SECONDS] [--probe FILE] [--python PYTHON]
#   OUT         folder for the results; run again with the same one to go on (it is made)
#   --budget    for everything together, building included (default 540)
#   --probe     a rehearse-probe that was built elsewhere; default: build/cuda's, or one that is built there now
#   --python    a Python with PyTorch (default python3); without it only the probe runs
# Needs one NVIDIA GPU with its driver; to build the probe also nvcc and CMake, and where there are several GPUs nccl.h
# (pip's nvidia-* packages will do). No root, nothing is installed, nothing leaves OUT but the build.
# Each part has its share of the time and is stopped at it; what it has measured by then is in OUT already, so that this
# script may be cut off at any moment. A probe that a fault ends is started again for what it has not tried yet.
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

# Loading PyTorch takes seconds: once, for both questions.
have_torch=no
if torch=$("$python" -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())' 2>"$work/torch.log"); then
  have_torch=yes
else
  say "$python has no PyTorch: attention and training steps are left out"
  tail -n 1 "$work/torch.log"
fi
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
  command -v nvidia-smi >/dev/null || echo "no nvidia-smi here"
  ! command -v nvidia-smi >/dev/null || timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,temperature.gpu,pcie.link.gen.current,pcie.link.width.current,ecc.mode.current --format=csv
  [ $have_torch = no ] || echo "$torch"
} >"$out/machine.txt" 2>&1
cat "$out/machine.txt"

if [ -n "$probe" ]; then timeout --kill-after=5 60 "$probe" --self-test || say "the self-test ended with code $?"; fi

# Time at the end to pack what was kept.
budget=$((budget > 120 ? budget - 10 : budget))
# Two fifths of what is left for the probe, a fifth of the rest for attention, what remains for training steps.
if [ -n "$probe" ]; then
  share=$(left)
  if [ $have_torch = yes ]; then share=$((share * 2 / 5)); fi
  # The quick run's series come first; then as many more as there is time for, with its coarser rule unless time is ample.
  rule=(--target-error 0.02 --series-cap 0.3)
  [ "$share" -lt 900 ] || rule=()
  until=$((SECONDS + share))
  for try in 1 2 3 4 5 6; do
    share=$((until - SECONDS))
    [ $share -gt 0 ] || break
    # It stops by itself between two series, and by --case-limit in one that hangs; the kill is for what even that does not end.
    timeout --signal=INT --kill-after=10 $((share + 20)) "$probe" "${rule[@]}" --budget "$share" --case-limit 45 --directory "$work" --out "$out/measurements.json"
    code=$?
    [ $code -ne 0 ] || break
    say "the probe ended with code $code"
    # Mistakes stay mistakes, and without a GPU there is no file. All else may have been one series: it comes last now.
    [ $code -ne 2 ] && [ -s "$out/measurements.json" ] && [ $try -lt 6 ] || break
    [ $((until - SECONDS)) -lt 5 ] || say "it goes on with what is left"
  done
fi
if [ $have_torch = yes ]; then
  share=$(($(left) / 5))
  timeout --signal=INT --kill-after=10 $((share + 20)) "$python" "$root/calibrate/ground_truth/attention.py" --budget "$share" --out "$out/attention.json" ||
    say "attention.py ended with code $?"
  share=$(left)
  [ "$share" -lt 20 ] || timeout --signal=INT --kill-after=10 "$share" "$python" "$root/calibrate/ground_truth/measure.py" --budget $((share - 10)) --out "$out" --details "$work" ||
    say "measure.py ended with code $?"
fi
tar -C "$out" -czf "$out/details.tar.gz.part" details && mv "$out/details.tar.gz.part" "$out/details.tar.gz"
say "$((SECONDS - begin)) s; results in $out"
for file in measurements.json attention.json runs.csv; do [ ! -s "$out/$file" ] || exit 0; done
say "nothing could be measured"
exit 3
