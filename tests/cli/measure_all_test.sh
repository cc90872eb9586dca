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

# One that a fault ends after a few series: started again in the same file, at most six times in all, and then it is enough.
cat >probe <<'SH'
#!/bin/bash
[ "$1" != --self-test ] || exit 0
echo run >>probe-runs
while [ $# -gt 0 ]; do [ "$1" != --out ] || echo '{}' >"$2"; shift; done
[ "$(wc -l <probe-runs)" -ge "$(cat dies)" ] || kill -SEGV $$
SH
echo 3 >dies
expect 0 faults --budget 60 --probe "$PWD/probe" --python false
prints "the probe ended with code 139"
prints "it goes on with what is left"
checks=$((checks + 2))
[ "$(wc -l <probe-runs)" = 3 ] || complain "the probe was started $(wc -l <probe-runs) times, not 3"
echo 99 >dies; rm probe-runs
expect 0 always --budget 60 --probe "$PWD/probe" --python false
[ "$(wc -l <probe-runs)" = 6 ] || complain "a probe that always dies was started $(wc -l <probe-runs) times, not 6"

# Cut off in the middle of the training steps: their rows lie in the folder already. A stand-in for Python that has PyTorch.
cat >python <<'SH'
#!/bin/bash
case $1 in
  -c) [[ $2 != *torch* ]] || echo "PyTorch stand-in" ;;
  *attention.py) exit 0 ;;
  *measure.py) while [ $# -gt 0 ]; do [ "$1" != --out ] || echo row >"$2/runs.csv"; shift; done; sleep 8 ;;
esac
SH
chmod +x python
printf '#!/bin/bash\nexit 0\n' >probe
checks=$((checks + 1))
{ timeout --signal=KILL 4 "$program" cut --budget 60 --probe "$PWD/probe" --python "$PWD/python" >/dev/null 2>&1; } 2>/dev/null
[ -s cut/runs.csv ] || complain "rows were lost when the script was killed"

# One that finds no GPU: exit code 3, and said; not tried again.
printf '#!/bin/bash\necho "no usable GPU" >&2\nexit 3\n' >probe
expect 3 nothing --budget 60 --probe "$PWD/probe" --python false
prints "nothing could be measured"

program=$program_before
