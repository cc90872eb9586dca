#!/bin/bash
# Tests of the program through its front door: exit codes, messages, files. Usage: tests/cli/run.sh PROGRAM [PART...]
# Each part is a file beside this one that calls the helpers below. Prints what failed; exits with 1 if anything did.
set -u
program=$(realpath "$1"); shift
here=$(cd "$(dirname "$0")" && pwd)
scenarios=$(cd "$here/../../scenarios" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export NO_COLOR=1
failed=0 checks=0

complain() { echo "FAILED $part: $*"; failed=$((failed + 1)); }

# expect CODE ARGUMENTS...: runs the program; its output is in ./out and ./err afterwards.
expect() {
  local code=$1; shift
  checks=$((checks + 1))
  timeout 60 "$program" "$@" >out 2>err </dev/null
  local got=$?
  [ $got -eq "$code" ] || { complain "exit $got instead of $code: rehearse $*"; head -5 err; }
}
# says TEXT, prints TEXT: stderr, stdout of the last program hold TEXT.
says() { checks=$((checks + 1)); grep -qF -- "$1" err || { complain "stderr lacks: $1"; head -8 err; }; }
prints() { checks=$((checks + 1)); grep -qF -- "$1" out || { complain "stdout lacks: $1"; head -8 out; }; }
silent_out() { checks=$((checks + 1)); [ ! -s out ] || complain "stdout is not empty"; }
silent_err() { checks=$((checks + 1)); [ ! -s err ] || { complain "stderr is not empty"; head -5 err; }; }
narrow() { checks=$((checks + 1)); [ "$(wc -L <"$1")" -le 100 ] || complain "$1 is wider than 100 columns"; }

# scenario NAME [SED-EXPRESSION]: a small valid scenario, changed.
scenario() {
  cat >"$1" <<'YAML'
title: tiny
model: {layers: 4, hidden: 1024, heads: 8, kv_heads: 4, ffn_hidden: 2816, vocab: 32000}
cluster: {node: dgx-h100, nodes: 1}
training:
  sequence_length: 1024
  global_batch_size: 32
  micro_batch_size: 1
  framework: torchtitan
parallelism: {tensor: 1}
data_parallel: {kind: fsdp2}
memory: {recompute: none}
YAML
  [ $# -lt 2 ] || sed -i "$2" "$1"
}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=("$here"/*_test.sh)
for part_file in "${parts[@]}"; do
  part=$(basename "$part_file" _test.sh)
  . "$here/${part}_test.sh"
done
echo "$checks checks, $failed failed"
[ $failed -eq 0 ]
