# Bad input: exit 2, the place, the reason, the fix; everything at once; nothing on stdout.
scenario typo.yaml 's/micro_batch_size/micro_batchs/'
expect 2 run typo.yaml
says "typo.yaml:7:3"; says "training.micro_batchs: unknown key"; says "micro_batch_size"; says "  micro_batchs: 1"; says "^^^"; silent_out

# All mistakes at once.
scenario two.yaml 's/sequence_length: 1024/sequence_length: -5/; s/global_batch_size: 32/global_batch_size: many/'
expect 2 run two.yaml
says "two.yaml:5:"; says "two.yaml:6:"; says "2 mistakes"

for value in -1 0 .nan .inf 1.5 1e400 0x10 "''" "[1]" "{a: 1}" null true 99999999999999999999; do
  expect 2 run typo.yaml --set training.micro_batch_size=1 --set "training.sequence_length=$value"
  silent_out
done
scenario fine.yaml
for value in -1 0 .nan 3 1000000000000 "''"; do
  expect 2 run fine.yaml --set "parallelism.tensor=$value"; says "tensor"
done
expect 2 run fine.yaml --set parallelism.tensor; says "needs a key and a value"
expect 2 run fine.yaml --set =1
expect 2 run fine.yaml --set no.such.key=1; says "unknown key"
expect 2 run fine.yaml --set cluster.nodes=-3
expect 2 run fine.yaml --set data_parallel.bucket=-25MiB
expect 2 run fine.yaml --set data_parallel.bucket=25M
expect 2 run fine.yaml --set training.framework=torchtitann; says "Did you mean torchtitan"
expect 2 run fine.yaml --set cluster.node=dgx-h10; says "dgx-h100"
expect 2 run fine.yaml --set model=lama-3-8b; says "llama-3-8b"
expect 2 run fine.yaml --set model=qwen3; says "Known: qwen3-0.6b"
expect 2 compare fine.yaml --set-b no.such.key=1; says "--> --set-b no"
expect 2 run -; says "/dev/stdin"
expect 2 run fine.yaml --set data_parallel.kind=fsdp; says "Did you mean fsdp1 or fsdp2?"
expect 2 run fine.yaml --set cluster.gpu=h100; says "Did you mean h100-96gb-hbm2e, h100-nvl, h100-pcie or h100-sxm?"
expect 2 run fine.yaml --set training.micro_batch=1; says "Did you mean micro_batch_size?"
scenario tensor.yaml 's/tensor: 1/tensor: 3/'
expect 2 run tensor.yaml; says "tensor.yaml:9:23"; says "parallelism.tensor: tensor 3 does not divide 8 GPUs"
scenario heads.yaml 's/kv_heads: 4/kv_heads: 3/'
expect 2 run heads.yaml; says "heads.yaml:2:54"; says "model.kv_heads: kv_heads 3 does not divide heads 8"
expect 2 run fine.yaml --set model.layers=100000; says "model.layers"; says "at most 10000"
expect 2 sweep fine.yaml --over training.micro_batch_size=1,2 --over training.micro_batch_size=4; says "is varied twice"
expect 0 sweep fine.yaml --over training.micro_batch_size=1 -q; expect 0 sweep fine.yaml --over training.micro_batch_size=1; prints "1 combination: 1 fit"
expect 2 run fine.yaml --set training.global_batch_size=33; says "training.global_batch_size"

expect 2 run fine.yaml --set training.global_batch_size=9223372036854775807; says "between 1 and"
expect 2 run fine.yaml --set training.global_batch_size=100000000000 --set parallelism.pipeline=2; says "micro-batches per step are more than any run has"
# Files that are none.
not_set=
expect 2 run missing.yaml; says "no such file"
expect 2 run fine.yml; says "Did you mean fine.yaml"
expect 2 run .; says "folder"
: >empty.yaml; expect 2 run empty.yaml; says "empty.yaml"
printf '\0\1\2' >binary.yaml; expect 2 run binary.yaml; says "binary.yaml"
printf 'model: [\n' >broken.yaml; expect 2 run broken.yaml; says "broken.yaml:"
printf '[model\nname = "llama3"\n' >broken.toml; expect 2 import broken.toml; says "broken.toml:1:7"; says "not readable as TOML"
printf 'pretrain_gpt.py --num-layers 32 --hiden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 --micro-batch-size 1\n' >slip.sh
expect 2 import slip.sh --cluster dgx-h100; says "slip.sh:1:46"; says "hidden_size: is not among"; says "hiden_size stands here"
{ printf 'model: '; head -c 100000 /dev/zero | tr '\0' a; printf '\n'; } >long.yaml; expect 2 run long.yaml
checks=$((checks + 1)); [ "$(wc -c <err)" -lt 10000 ] || complain "a message as long as the value"
printf 'a: &a [x,x,x,x,x,x,x,x,x]\n' >bomb.yaml
for i in 1 2 3 4 5 6 7 8; do printf 'k%d: &%s [*%s,*%s,*%s,*%s,*%s,*%s,*%s,*%s]\n' $i b$i $([ $i = 1 ] && echo a || echo b$((i-1))){,,,,,,,}; done >>bomb.yaml
expect 2 run bomb.yaml
truncate -s 1G huge.yaml
start=$SECONDS; expect 2 run huge.yaml; says "larger than"
checks=$((checks + 1)); [ $((SECONDS - start)) -le 5 ] || complain "a file of 1 GB takes long to refuse"
printf 'extends: b.yaml\n' >a.yaml; printf 'extends: a.yaml\n' >b.yaml
expect 2 run a.yaml; says "circle"
printf 'extends: nowhere.yaml\n' >c.yaml; expect 2 run c.yaml; says "c.yaml:1:"
printf 'title: "\033[31mred"\nmodle: x\n' >control.yaml; expect 2 run control.yaml
checks=$((checks + 1)); grep -q $'\033' err && complain "control characters reach the terminal"

# Names that no file can have, and places that are no folders.
long=$(printf 'a%.0s' {1..300}).yaml
for key in cluster.node cluster.gpu cluster.fabric cluster.collectives training.framework; do
  expect 2 run fine.yaml --set "$key=$long"; says "File name too long"; silent_out
done
expect 2 run fine.yaml -o "$long"; says "File name too long"
expect 2 run fine.yaml --trace fine.yaml/x; says "Not a directory"
expect 2 sweep fine.yaml --over training.micro_batch_size=1,2 --into fine.yaml; says "Not a directory"
expect 2 sweep fine.yaml --over training.micro_batch_size=1,2 --into fine.yaml/x; says "Not a directory"

# Nothing that is read is written over, no output over another.
for option in -o --trace --report --memory-snapshot; do expect 2 run fine.yaml $option ./fine.yaml; says "is what is read"; done
expect 2 run fine.yaml --trace a.json -o ./a.json; says "is named for two outputs"
checks=$((checks + 1)); grep -q "title: tiny" fine.yaml || complain "the scenario was written over"
expect 2 sweep fine.yaml --over training.micro_batch_size=1,2 -o fine.csv/../fine.yaml
cp fine.yaml fine.csv; expect 2 sweep fine.csv --over training.micro_batch_size=1,2 -o fine.csv; says "is what is read"

# Sizes beyond what is counted in 64 bits, stages that are not there, machines that are none.
expect 2 run fine.yaml --set training.micro_batch_size=1000000000 --set training.global_batch_size=8000000000; says "cannot be counted in 64 bits"
expect 2 run fine.yaml --set training.sequence_length=67108864 --set model=llama-3-8b; says "days cannot be simulated"
expect 2 run fine.yaml --set 'pipeline.layers_per_stage=[2,2]'; says "there is one stage"
expect 2 plan fine.yaml --tokens 1T --machines dgx-h10:1; says "--machines: unknown node 'dgx-h10'"
for line in 's/value: 132/value: -1/' 's/value: 81050 MiB/value: -1 MiB/' 's/value: 50 MB/value: 0 MB/' 's/^compute_capability: 90/compute_capability: 0/' 's/value: 450 GB/value: -450 GB/' 's/value: 2900 GB/value: 0 GB/'; do
  sed "$line" "$scenarios/../hwmodels/data/gpu/h100-sxm.yaml" >gpu.yaml
  expect 2 run fine.yaml --set cluster.gpu=./gpu.yaml; says "gpu.yaml:"
done
sed 's/memory_bandwidth: /memory_bandwidth: -/' "$scenarios/../hwmodels/data/node/dgx-h100.yaml" >node.yaml
expect 2 run fine.yaml --set cluster.node=./node.yaml; says "must be at least 0"
header=row_id,framework,gpu,n_gpus,seq_len,step_time_s
printf '%s\na,plain,h100-sxm,8,1024,-1\n' "$header" >negative.csv
expect 2 validate negative.csv; says "negative.csv:2:25"; says "step_time_s: nothing that was measured is -1"
printf '%s,outcome\na,plain,h100-sxm,8,1024,1,fine\n' "$header" >outcome.csv
expect 2 validate outcome.csv; says "outcome.csv:2:27"; says "'fine' is no outcome"
printf '%s\na,plain,h100-sxm,8,1024,1\na,plain,h100-sxm,8,1024,2\n' "$header" >twice.csv
expect 2 validate twice.csv; says "twice.csv:3:1"; says "'a' was there before"

printf '%s\n' "$header" >rowless.csv; expect 2 validate rowless.csv; says "rowless.csv:1:1"; says "has columns, but no rows"
printf '%s\na,plain,h100-sxm,8,1024,1\n' "$header" | tr , ';' >semicolons.csv; expect 2 validate semicolons.csv; says "cells are separated by semicolons"

# The command line itself.
expect 2 run fine.yaml --output "$not_set"; says "the value of --output is empty"; silent_out
expect 2 sweep fine.yaml --over training.micro_batch_size=1,2 --into "$not_set"; says "the value of --into is empty"
expect 2 sweep fine.yaml --over training.micro_batch_size=1,2 --top -1; says "--top: Value -1 not in range"
for option in --worst --threads; do expect 2 validate runs.csv $option -1; says "$option: Value -1 not in range"; done
expect 2 calibrate import fine.yaml --out "$not_set"; says "the value of --out is empty"
expect 2; says "needs a subcommand"
expect 2 rnu fine.yaml; says "no subcommand 'rnu'"; says "Did you mean run?"
expect 2 run fine.yaml --jsno; says "no option --jsno"; says "Did you mean --json?"
expect 2 run; says "SCENARIO"
expect 2 run fine.yaml more.yaml; says "more.yaml"
expect 2 hardware; says "list, show"
expect 2 hardware shwo; says "Did you mean show?"
expect 2 explain fine.yaml --stage plann; says "Did you mean plan?"
expect 2 explain fine.yaml
expect 2 hardware show h100-sxn; says "h100-sxm"
expect 2 model show llama-3-8bb; says "llama-3-8b"
expect 2 framework show torchtitn; says "torchtitan"
