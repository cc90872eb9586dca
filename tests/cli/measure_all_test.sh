# calibrate/measure_all.sh with stand-ins for the probe and for Python: arguments, exit codes, what it keeps. No GPU.
measure=$here/../../calibrate/measure_all.sh
program_before=$program
program=$measure

expect 2
says "name a folder for the results"
expect 2 out --budget soon
says 'is not a number of seconds'
expect 2 out --bugdet 3
says "unknown option --bugdet"
expect 2 out --probe /no/such/probe --python false
says "is no program"
expect 0 --help
prints "Usage: calibrate/measure_all.sh OUT"

# A probe that measures: the script hands it its share of the time and the place, and the exit code is 0.
cat >probe <<'SH'
#!/bin/bash
echo "$*" >>probe-arguments
while [ $# -gt 0 ]; do [ "$1" != --out ] || echo '{}' >"$2"; shift; done
SH
chmod +x probe
expect 0 results --budget 60 --probe "$PWD/probe" --python false
prints "false has no PyTorch"
checks=$((checks + 3))
[ -s results/measurements.json ] || complain "the probe's file is not kept"
[ -s results/details.tar.gz ] || complain "details are not packed"
grep -q -- "--self-test" probe-arguments && grep -qE -- "--budget (5[0-9]|60) " probe-arguments || { complain "the probe was asked otherwise"; cat probe-arguments; }

# One that finds no GPU: exit code 3, and said.
printf '#!/bin/bash\necho "no usable GPU" >&2\nexit 3\n' >probe
expect 3 nothing --budget 60 --probe "$PWD/probe" --python false
prints "nothing could be measured"

program=$program_before
