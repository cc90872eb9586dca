#!/bin/bash
# Compares what the program prints with the files beside this one, byte for byte, and shows what is different.
# Usage: tests/golden/golden.sh PROGRAM [--renew]     --renew: write the files anew (scripts/golden builds first)
# A difference is either a mistake, or a result that is meant to change: then renew, read the diff, and say in CHANGELOG.md
# under "Results changed" what changed and why.
set -u
program=$(realpath "$1") renew=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.." || exit 2
export NO_COLOR=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0 count=0
while read -r name arguments; do
  [[ -n $name && $name != \#* ]] || continue
  count=$((count + 1))
  # shellcheck disable=SC2086  # the arguments are words
  "$program" $arguments >"$scratch/$name.txt" 2>"$scratch/err" </dev/null
  code=$?
  echo "exit code $code" >>"$scratch/$name.txt"
  [ -s "$scratch/$name.txt" ] && [ $code -le 1 ] || { echo "$name: exit code $code"; cat "$scratch/err"; failed=$((failed + 1)); continue; }
  if [ "$renew" = --renew ]; then
    cmp -s "$scratch/$name.txt" "$here/$name.txt" || { echo "renewed: $name"; cp "$scratch/$name.txt" "$here/$name.txt"; }
  elif ! diff -u "$here/$name.txt" "$scratch/$name.txt" >"$scratch/diff" 2>&1; then
    echo "DIFFERENT: $name ($program $arguments)"
    head -40 "$scratch/diff"
    failed=$((failed + 1))
  fi
done <"$here/cases"
echo "$count cases, $failed different"
[ $failed -eq 0 ] && [ $count -gt 0 ]
