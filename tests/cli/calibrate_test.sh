# rehearse calibrate: import, show, fit and use what was fitted; against.

cat >reduce.log <<'LOG'
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid   1 on   node0 device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1 on   node0 device  1 [0x91] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        8192          2048     float     sum      -1    25.00    0.33    0.33      0    25.10    0.33    0.33      0
       65536         16384     float     sum      -1    28.00    2.34    2.34      0    28.10    2.33    2.33      0
      524288        131072     float     sum      -1    34.00   15.42   15.42      0    34.10   15.38   15.38      0
     4194304       1048576     float     sum      -1    60.00   69.91   69.91      0    60.10   69.79   69.79      0
    33554432       8388608     float     sum      -1    180.0  186.41  186.41      0    180.1  186.31  186.31      0
   268435456      67108864     float     sum      -1   1150.0  233.42  233.42      0   1150.1  233.40  233.40      0
  2147483648     536870912     float     sum      -1   8500.0  252.65  252.65      0   8500.1  252.64  252.64      0
LOG
expect 0 calibrate import reduce.log --out m.json
prints "7 rows of 2 GPUs on 1 node"
expect 0 calibrate show m.json --all
prints "NVIDIA H100 80GB HBM3"
prints "collective"
expect 0 calibrate fit m.json --out fitted
prints "collectives: 7 rows"
prints "one out"
[ -f fitted/collectives.yaml ] && [ -f fitted/cluster.yaml ] || complain "fit wrote no collectives.yaml and cluster.yaml"

# The fragment that fit wrote is a cluster to build on.
cat >job.yaml <<'YAML'
extends: fitted/cluster.yaml
model: {layers: 4, hidden: 1024, heads: 8, kv_heads: 4, ffn_hidden: 2816, vocab: 32000}
training: {sequence_length: 1024, global_batch_size: 32, framework: torchtitan}
data_parallel: {kind: ddp}
YAML
expect 0 run job.yaml --json
prints "fitted/collectives.yaml"

expect 2 calibrate fit m.json --out fitted --gpu h100-smx
says "Did you mean h100-sxm?"
expect 2 calibrate import none.log --out m.json
says "none.log"
echo hello >bad.log
expect 2 calibrate import bad.log --out m.json
says "holds no table of nccl-tests"
printf '\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\t0-31\t0\nGPU1\tNV12\t X \t32-63\t1\n' >topo.txt
expect 0 calibrate import topo.txt --gpu a100-80gb-pcie --out node.yaml
grep -q "scale_up: bridge" node.yaml || complain "two GPUs with NVLink are no bridge"
expect 2 calibrate import topo.txt --out node.yaml
says "--gpu"

# Against logs: three runs hold one constant, and two of them none.
for i in 1 2 3; do
  scenario "small$i.yaml" "s/layers: 4/layers: $((4 * i))/; s/hidden: 1024/hidden: 512/; s/sequence_length: 1024/sequence_length: 128/"
  for step in 1 2 3 4 5 6 7 8; do echo " iteration $step/ 100 | elapsed time per iteration (ms): $((60 + 90 * i)).0 |"; done >"small$i.log"
done
expect 0 calibrate against --run small1.yaml:small1.log --run small2.yaml:small2.log --run small3.yaml:small3.log --fit kernel --out mine.yaml
prints "kernel_host"
prints "left out"
expect 0 run small1.yaml --set training.framework=./mine.yaml
expect 1 calibrate against --run small1.yaml:small1.log --run small2.yaml:small2.log --fit kernel
prints "2 runs cannot hold 1 constant"
expect 2 calibrate against
says "nothing to fit to"

# What was measured, fitted and judged in one go: a trace of an H100 beside a table of its steps.
{
  printf '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132}], "traceEvents": ['
  comma=
  for i in {0..11}; do
    n=$((1024 * (2 + i))) ns=$((2 * 8192 * 4096 * 1024 * (2 + i) / 400000))   # 400 TFLOPS
    printf '%s{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": %d, "dur": 30, "args": {"External id": %d, ' "$comma" $((4000 * i)) $((100 + i))
    printf '"Input Dims": [[8192, 4096], [4096, %d]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Strides": [[4096, 1], [1, 4096]]}}, ' $n
    printf '{"ph": "X", "cat": "kernel", "name": "nvjet", "pid": 0, "tid": 7, "ts": %d, "dur": %d.%03d, ' $((4000 * i + 60)) $((ns / 1000)) $((ns % 1000))
    printf '"args": {"External id": %d, "device": 0, "stream": 7, "correlation": %d, "grid": [132, 1, 1], "block": [384, 1, 1]}}' $((100 + i)) $((500 + i))
    comma=', '
  done
  printf ']}\n'
} >trace.json
mkdir home
expect 0 calibrate import trace.json --out home/measurements.json
head -n 6 "$here/../oracles/data/ground_truth_rows.csv" | sed 's/,h200-sxm,/,h100-sxm,/' >home/runs.csv
checks=$((checks + 3))
"$here/../../calibrate/fit_measured.sh" home "$program" >out 2>err || complain "fit_measured.sh ended with $?: $(head -3 err)"
prints "one out"
prints "after:"
cmp -s home/before.txt home/after.txt && complain "validate --gpu changes nothing"
expect 2 validate home/runs.csv --gpu a100-80gb-sxm
says "no row of these tables ran on"
