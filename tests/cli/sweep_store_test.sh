# sweep --into: points outlive the program, shares meet, what is there is believed only when it is whole and of this program.
scenario small.yaml
over="--over memory.recompute=none,selective,full --over training.micro_batch_size=1,2,3,4"
expect 0 sweep small.yaml $over --format csv -q; cp out whole.csv
expect 0 sweep small.yaml $over --into points --format csv; says "9 of 12 points simulated now"
checks=$((checks + 1)); cmp -s out whole.csv || complain "a sweep into a folder says something else"
expect 0 sweep small.yaml $over --into points --format csv; says "0 of 12 points simulated now"
checks=$((checks + 1)); cmp -s out whole.csv || complain "kept points say something else"
# Shares of other processes, one of them killed: a file that is not whole is simulated again.
for i in 0 1 2; do expect 0 sweep small.yaml $over --into shares --shard $i/3 -q; silent_out; done
file=$(find shares -name '*.json' ! -name about.json | head -1); head -c 40 "$file" >cut_short; mv cut_short "$file"
expect 0 sweep small.yaml $over --into shares --format csv; says "1 of 12 points simulated now"
checks=$((checks + 1)); cmp -s out whole.csv || complain "shares say something else"
# No room for a point: the sweep ends and says so, a share too; what was there stays, and no piece of a file is left.
# No file may grow here; what the program says goes through a pipe.
expect 0 sweep small.yaml --over training.micro_batch_size=1 --into full -q
for share in "" "--shard 1/2"; do
  checks=$((checks + 3))
  (trap '' XFSZ; ulimit -f 0; timeout 60 "$program" sweep small.yaml $over --into full $share -q) 2>&1 >/dev/null </dev/null | cat >err
  code=${PIPESTATUS[0]}
  [ "$code" -eq 3 ] || complain "exit $code instead of 3 where there is no room"
  says "cannot be written (File too large)"
  [ "$(find full -type f | wc -l)" -eq 2 ] || complain "a sweep without room leaves $(find full -type f)"
done
expect 0 sweep small.yaml $over --into full --format csv
checks=$((checks + 1)); cmp -s out whole.csv || complain "a sweep that ran out of room says something else"
# Stopped on the way: what is done is written, the rest says so, and the same command goes on from there.
long="--over training.sequence_length=$(seq -s, 64 64 8192) --over memory.recompute=none,selective,full --over training.global_batch_size=32,64,128,256"
"$program" sweep small.yaml $long --into stopped --jobs 1 --format csv -o stopped.csv >out 2>err </dev/null &
pid=$!
while [ "$(find stopped -type f 2>/dev/null | wc -l)" -lt 3 ] && kill -0 $pid; do sleep 0.05; done
kill -TERM $pid; wait $pid; code=$?
checks=$((checks + 3))
[ $code -eq 143 ] || complain "a sweep that was stopped exits with $code"
grep -q ',not_simulated,' stopped.csv || complain "no point was left out"
grep -q ',fits,' stopped.csv || complain "the points that were done are lost"
says "stopped: the same command goes on"
kept=$(grep -c ',fits,' stopped.csv)
expect 0 sweep small.yaml $long --into stopped --format csv -o went_on.csv -q
checks=$((checks + 2))
[ "$(grep ',fits,' stopped.csv | sort - went_on.csv | uniq -d | wc -l)" -eq "$kept" ] || complain "points changed when the sweep went on"
! grep -q not_simulated went_on.csv || complain "points are left out for good"
# Settings that come to the same, at once: each of them is one point, kept once.
expect 0 sweep small.yaml --over parallelism.data=auto,8 --over memory.recompute=none,none,none,none --into same --jobs 8 --format csv
checks=$((checks + 1)); [ "$(find same -type f | wc -l)" -eq 2 ] || complain "equal points: $(find same -type f)"
expect 2 sweep small.yaml $over --shard 0/3; says "--into"
expect 2 sweep small.yaml $over --into shares --shard 3/3; says "no share"
expect 2 sweep small.yaml $over --into shares --shard 0/3 -o out.csv; says "one share"
expect 2 sweep small.yaml $over --into .; says "something else"
echo '{"rehearse": "0.0.0"}' >shares/about.json
expect 2 sweep small.yaml $over --into shares; says "another version"
for broken in '' '{"rehe'; do
  printf '%s' "$broken" >shares/about.json
  expect 2 sweep small.yaml $over --into shares; says "another version"
done
expect 0 sweep small.yaml $over --into points --slurm 8; prints "#SBATCH --array=0-7"; prints "--over 'memory.recompute=none,selective,full'"
