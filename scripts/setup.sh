# Set-up shared by the scripts beside it; sourced, never run. Leaves out what each script does afterwards.
#   needs: bash, and on a machine without the packages below Debian 12's apt-get as root or with sudo
#   sets:  root (the repository)          all progress goes to stderr, the log of apt-get to build/setup.log

root=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)

# Exit codes of the program itself (README, "Exit codes").
readonly kEnvironmentMissing=3 kOurBug=4

# What CMakeLists.txt, tests/ and tests/bench look for. Boost.Graph as used here is headers only, so libboost-dev is enough.
readonly kToolPackages=(g++ cmake ninja-build)
readonly kLibraryPackages=(libyaml-cpp-dev libtomlplusplus-dev libboost-dev libeigen3-dev libfmt-dev nlohmann-json3-dev libcli11-dev
                           libgtest-dev libbenchmark-dev libsqlite3-dev zlib1g-dev)
readonly kUsefulPackages=(ccache)  # the build works without

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() {
  local code=$1
  shift
  say "$@"
  exit "$code"
}

command_of() {
  case $1 in
    ninja-build) echo ninja ;;
    *) echo "$1" ;;
  esac
}

# Tools may come from anywhere; libraries are asked of dpkg.
missing_packages() {
  local package
  for package in "${kToolPackages[@]}" "$@"; do
    command -v "$(command_of "$package")" >/dev/null || echo "$package"
  done
  if ! command -v dpkg-query >/dev/null; then return; fi  # not Debian: CMake will tell what is missing
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${kLibraryPackages[@]}" 2>/dev/null || true)
  for package in "${kLibraryPackages[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || echo "$package"
  done
}

# How to become root: nothing, sudo, or fail. Without a terminal sudo must not ask.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif [ -t 0 ]; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

ensure_packages() {
  local missing
  mapfile -t missing < <(missing_packages "${kUsefulPackages[@]}")
  [ "${#missing[@]}" -gt 0 ] || return 0
  local by_hand="apt-get install ${missing[*]}"
  if [ "${missing[*]}" = "${kUsefulPackages[*]}" ] && ! { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }; then
    return 0
  fi
  command -v apt-get >/dev/null ||
    die $kEnvironmentMissing "these are missing and there is no apt-get to install them: ${missing[*]} (names of Debian 12). Install them, then run this again."
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      die $kEnvironmentMissing "packages are missing, and neither root nor sudo is available to install them. As root: $by_hand"
    as_root true ||
      die $kEnvironmentMissing "packages are missing, and sudo did not let us install them. As root: $by_hand"
  fi
  local log=$root/build/setup.log
  say "installing ${missing[*]}"
  as_root apt-get -o DPkg::Lock::Timeout=120 update >"$log" 2>&1 ||
    say "apt-get update failed ($(grep -m1 '^[EW]:' "$log" || echo "see $log")); trying with the package lists that are here"
  if ! as_root apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    grep '^E:' "$log" >&2 || tail -n 5 "$log" >&2
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -eq 0 ] ||
      die $kEnvironmentMissing "could not install ${missing[*]} (log: $log). By hand, as root: $by_hand"
  fi
}

# A build folder that was made for another place (a moved or copied tree) is of no use to CMake.
drop_foreign_build() {
  local cache=$root/build/$1/CMakeCache.txt
  [ -f "$cache" ] || return 0
  if ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    say "build/$1 belongs to another folder; starting it anew"
    rm -rf "${root:?}/build/$1"
  fi
}

# configure PRESET [cmake options]: only when there is no build yet or an option differs; ninja sees to the rest.
configure() {
  local preset=$1 option stale=no
  shift
  drop_foreign_build "$preset"
  local tree=$root/build/$preset
  [ -f "$tree/build.ninja" ] || stale=yes
  for option in "$@"; do
    grep -qs "^$(sed 's/^-D//; s/=/:[A-Z]*=/' <<<"$option")\$" "$tree/CMakeCache.txt" || stale=yes
  done
  if [ $stale = yes ]; then
    say "configuring build/$preset"
    (cd "$root" && cmake --preset "$preset" "$@") >"$root/build/configure.log" 2>&1 || {
      cat "$root/build/configure.log" >&2
      die $kEnvironmentMissing "configuring failed (above). A package may be missing: ${kToolPackages[*]} ${kLibraryPackages[*]}"
    }
  fi
}

# build PRESET [targets]: on a terminal with ninja's progress line, else silent until something fails.
build() {
  local preset=$1 quiet=(--quiet)
  shift
  if [ -t 2 ]; then quiet=(); fi
  say "building build/$preset (the first time takes some minutes)"
  ninja -C "$root/build/$preset" -j "$(nproc)" "${quiet[@]}" "$@" >&2 ||
    die $kOurBug "the build failed (above)"
}

# One set-up at a time per tree; the lock goes away with the script.
lock_tree() {
  mkdir -p "$root/build" 2>/dev/null && [ -w "$root/build" ] ||
    die $kEnvironmentMissing "cannot write to $root/build"
  if command -v flock >/dev/null; then
    exec 9>"$root/build/.setup.lock"
    flock -n 9 || {
      say "waiting for another set-up of this tree"
      flock 9
    }
  fi
}
unlock_tree() { exec 9>&-; }

# The stamp is older than every source that the last build did not see. Changed, added and removed files count
# (ctime, which tools that copy old dates cannot set back); data files do not, they are read when the program runs.
readonly kProgramSources=(CMakeLists.txt CMakePresets.json cmake sim hwmodels strategies)
program_is_current() {
  local tree=$root/build/release
  [ -x "$tree/rehearse" ] && [ -f "$tree/.sources-seen" ] || return 1
  local changed
  changed=$(cd "$root" && find "${kProgramSources[@]}" -name data -prune -o \
    \( -type d -o -name '*.cpp' -o -name '*.h' -o -name '*.cmake' -o -name CMakeLists.txt -o -name CMakePresets.json \) \
    -cnewer build/release/.sources-seen -print -quit) || return 1
  [ -z "$changed" ]
}

# Builds build/release/rehearse when its sources changed. Instant when nothing did: no cmake, no ninja.
ensure_program() {
  if program_is_current; then return 0; fi
  lock_tree
  if ! program_is_current; then
    ensure_packages
    configure release
    local stamp=$root/build/.sources-seen.new
    : >"$stamp"
    build release rehearse
    mv "$stamp" "$root/build/release/.sources-seen"
  fi
  unlock_tree
}

# replace_block NAME FILE [--check]: puts FILE between the lines <!-- NAME:begin --> and <!-- NAME:end --> of README.md.
# With --check nothing is changed, and a difference is exit code 1.
replace_block() {
  local begin="<!-- $1:begin -->" end="<!-- $1:end -->" readme=$root/README.md new=$2.readme
  grep -qxF -- "$begin" "$readme" && grep -qxF -- "$end" "$readme" ||
    die $kOurBug "README.md lacks the lines '$begin' and '$end'"
  [ -s "$2" ] || die $kOurBug "nothing to put between '$begin' and '$end'"
  awk -v begin="$begin" -v end="$end" -v block="$2" '
    $0 == end { inside = 0 }
    !inside { print }
    $0 == begin { inside = 1; while ((getline line < block) > 0) print line }' "$readme" >"$new"
  if cmp -s "$new" "$readme"; then
    say "README.md is up to date"
  elif [ "${3:-}" = --check ]; then
    diff -u "$readme" "$new" >&2 || true
    die 1 "README.md is out of date between '$begin' and '$end': run scripts/${0##*/}"
  else
    cat "$new" >"$readme"
    say "README.md updated"
  fi
}
