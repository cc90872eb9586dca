#!/bin/sh
# Checks every #include line against the direction of the rooms: upper rooms include lower ones, never the reverse.
# The compiler cannot see it: a header of any room is on the include path. Leaves out unused includes.
# Usage: tests/include_direction.sh [ROOT]          prints file:line: and why; exit 1 when something is wrong
#        tests/include_direction.sh --self-test     checks that wrong lines are found
set -eu
here=$(cd "$(dirname "$0")" && pwd)

check() (
  cd "$1"
  find sim hwmodels strategies calibrate tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' | sort | while read -r file; do
    grep -nE '^[[:space:]]*#[[:space:]]*include' "$file" /dev/null || true
  done | awk '
    # room: who it may include. Rooms whose name starts a longer one do not exist.
    BEGIN {
      allow("sim/core", "")
      allow("sim/config", "sim/core")
      allow("sim/engine", "sim/core")
      allow("sim/model", "sim/config sim/core")
      allow("sim/plan", "sim/model sim/core")
      allow("hwmodels", "sim/engine sim/model sim/config sim/core")
      allow("strategies", "sim/plan sim/model sim/config sim/core")
      allow("sim/executor", "hwmodels sim/plan sim/engine sim/model sim/core")
      allow("sim/importers", "sim/model sim/config sim/core")
      allow("sim/scenario", "sim/importers sim/executor strategies hwmodels sim/plan sim/engine sim/model sim/config sim/core")
      allow("sim/advice", "sim/scenario strategies hwmodels sim/plan sim/model sim/config sim/core")
      allow("sim/report", "sim/advice sim/scenario sim/importers sim/executor strategies hwmodels sim/plan sim/engine sim/model sim/config sim/core")
      allow("sim/cli", "calibrate sim/report sim/advice sim/scenario sim/importers sim/executor strategies hwmodels sim/plan sim/engine sim/model sim/config sim/core")
      allow("sim/python", "sim/report sim/scenario sim/importers sim/executor strategies hwmodels sim/plan sim/engine sim/model sim/config sim/core")
      allow("calibrate", "sim/report sim/scenario sim/importers sim/executor strategies hwmodels sim/plan sim/engine sim/model sim/config sim/core")
    }
    function allow(room, list,    names, n, i) {
      known[room] = 1
      may[room, room] = 1
      below[room] = list == "" ? "nothing of ours" : list
      n = split(list, names, " ")
      for (i = 1; i <= n; i++) may[room, names[i]] = 1
    }
    function room_of(path,    parts) {
      split(path, parts, "/")
      return parts[1] == "sim" ? "sim/" parts[2] : parts[1]
    }
    function wrong(why) { print place ": " why; bad = 1 }
    {
      match($0, /:[0-9]+:/)
      file = substr($0, 1, RSTART - 1)
      place = file substr($0, RSTART, RLENGTH - 1)
      line = substr($0, RSTART + RLENGTH)
      room = room_of(file)
      if (match(line, /"[^"]+"/)) {
        path = substr(line, RSTART + 1, RLENGTH - 2)
        target = room_of(path)
        if (room == "tests") {
          if (path !~ /\//) next                       # a helper beside the test
          if (!(target in known) && target != "tests") wrong("\"" path "\": there is no such room; include paths start at the root")
        } else if (!(room in known)) {
          wrong("this folder is no room; add it to tests/include_direction.sh")
        } else if (!(target in known)) {
          wrong("\"" path "\": there is no such room; include paths start at the root")
        } else if (target == "calibrate" && room != "calibrate" && room != "sim/cli") {
          wrong("\"" path "\": nothing includes calibrate but the program")
        } else if (!((room, target) in may)) {
          wrong("\"" path "\": " room " may include " below[room] ", not " target)
        }
      } else if (line ~ /<yaml-cpp\// && room != "sim/config" && room != "tests") {
        wrong("yaml-cpp is used in sim/config only: read a config::Value instead")
      } else if (line ~ /<boost\/graph\// && file !~ /\.cpp$/) {
        wrong("Boost.Graph stays inside .cpp files: a header that includes it slows every file that includes the header")
      }
    }
    END { exit bad }'
)

self_test() {
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  for folder in sim/core sim/engine sim/plan sim/report hwmodels/device strategies/data calibrate tests/unit; do
    mkdir -p "$root/$folder"
  done
  echo '#include "sim/core/units.h"' >"$root/sim/engine/good.cpp"
  echo '#include "helpers.h"' >"$root/tests/unit/good.cpp"
  echo '#include <boost/graph/adjacency_list.hpp>' >"$root/hwmodels/device/good.cpp"
  check "$root" >/dev/null || { echo "right lines were found wrong"; check "$root"; exit 1; }

  echo '#include "sim/engine/clock.h"' >"$root/sim/core/bad.h"                   # upwards
  echo ' #  include "hwmodels/device/gpu.h"' >"$root/strategies/data/bad.cpp"     # sideways
  echo '#include "strategies/spec.h"' >"$root/hwmodels/device/bad.cpp"           # sideways
  echo '#include "calibrate/fit.h"' >"$root/sim/report/bad.cpp"
  echo '#include "units.h"' >"$root/sim/plan/bad.cpp"                            # not from the root
  echo '#include <yaml-cpp/parser.h>' >"$root/sim/plan/bad.h"
  echo '#include <boost/graph/adjacency_list.hpp>' >"$root/hwmodels/device/bad.h"
  echo '#include "engine/clock.h"' >"$root/tests/unit/bad.cpp"
  expected=8
  found=$(check "$root" | wc -l)
  [ "$found" -eq $expected ] || { echo "found $found of $expected wrong lines:"; check "$root"; exit 1; }
}

case ${1:-} in
  --self-test) self_test ;;
  *) check "${1:-$here/..}" ;;
esac
