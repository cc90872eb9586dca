#!/bin/bash
# Every file that a page (*.md) links or names is there, and every option that it shows after `rehearse` is one of the program's.
# Leaves out the change log, which tells of what was. Usage: tests/documents.sh ROOT [PROGRAM]   |   tests/documents.sh --self-test
set -uo pipefail

# pages ROOT: all pages, with the folder they lie in.
pages() { (cd "$1" && find . -name '*.md' -not -path './build/*' -not -path './shared/*' -not -path '*/corpus/*' -not -name CHANGELOG.md | sed 's|^\./||' | sort); }

# options PROGRAM: all options of all subcommands, a line each.
options() {
  local sub inner
  for sub in "" $("$1" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]*\)  .*/\1/p'); do
    "$1" $sub --help
    [ -n "$sub" ] || continue
    for inner in $("$1" $sub --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z-]*\)  .*/\1/p'); do "$1" $sub $inner --help; done
  done | grep -oE -- '--[a-z][a-z-]*' | sort -u
}

# check ROOT [PROGRAM]: a line for each name that leads nowhere.
check() {
  local root=$1 program=${2:-} page folder name known
  local sources; sources=$(find "$root" -path "$root/build" -prune -o -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.py' -o -name '*.sh' \) -print | sed 's|.*/||' | sort -u)
  [ -z "$program" ] || known=$(options "$program")
  for page in $(pages "$root"); do
    folder=$root/$(dirname "$page")
    # Links: [words](path#place)
    grep -oE '\]\([^)# ]+' "$root/$page" | sed 's/^](//' | grep -v '://' | sort -u | while read -r name; do
      [ -e "$folder/$name" ] || echo "$page: the link $name leads nowhere"
    done
    # `a/path/of.ours` and `source.cpp`
    grep -oE '`[A-Za-z0-9_./-]+`' "$root/$page" | tr -d '`' | sort -u | while read -r name; do
      case $name in
        */*.md|*/*.h|*/*.cpp|*/*.cu|*/*.py|*/*.sh|*/*.yaml|*/*.csv|*/*.ipynb)
          case $name in */DIR/*|DIR/*|path/*|~*|/*) continue;; esac
          [ -e "$folder/$name" ] || [ -e "$root/$name" ] || [ -e "$root/sim/$name" ] || echo "$page: there is no $name" ;;
        [A-Za-z0-9_]*.h|[A-Za-z0-9_]*.cpp|[A-Za-z0-9_]*.cu|[A-Za-z0-9_]*.py|[A-Za-z0-9_]*.sh) grep -qxF -- "$name" <<<"$sources" || echo "$page: there is no $name" ;;
      esac
    done
    [ -n "$program" ] || continue
    grep -E '(^|[` /])rehearse [a-z]' "$root/$page" | sed 's/.*\(rehearse [a-z]\)/\1/' | grep -oE -- '(^|[^-A-Za-z0-9])--[a-z][a-z-]*' | grep -oE -- '--[a-z][a-z-]*' | sort -u | while read -r name; do
      grep -qxF -- "$name" <<<"$known" || echo "$page: rehearse has no option $name"
    done
  done
}

if [ "${1:-}" = --self-test ]; then
  work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
  printf '#!/bin/sh\necho "  --set KEY"\n' >"$work/rehearse"; chmod +x "$work/rehearse"
  mkdir "$work/a"; touch "$work/a/there.h"
  printf '[x](a/there.h) `there.h` `a/there.h` `rehearse run --set x`\n' >"$work/good.md"
  [ -z "$(check "$work" "$work/rehearse")" ] || { echo "complains of a good page: $(check "$work" "$work/rehearse")"; exit 1; }
  printf '[x](gone.h) `gone.cpp` `a/gone.h`\nrehearse run --sett x\n' >"$work/bad.md"
  [ "$(check "$work" "$work/rehearse" | wc -l)" -eq 4 ] || { echo "overlooks something: $(check "$work" "$work/rehearse")"; exit 1; }
  exit 0
fi

found=$(check "$@")
[ -z "$found" ] || { echo "$found"; exit 1; }
