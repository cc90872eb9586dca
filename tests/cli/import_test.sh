# rehearse import: report, scenario, what only the user can say.
cat >ds.json <<'JSON'
{
  "train_batch_size": 32,
  "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "overlap_comm": true},
  "steps_per_print": 10,
  "my_own_key": 3
}
JSON
expect 2 import ds.json; says "cluster.node"; says "--cluster"; silent_out
expect 2 import ds.json --cluster dgx-a100; says "--model"; says "--sequence-length"
expect 0 import ds.json --model llama-2-7b --cluster dgx-a100 --sequence-length 2048
says "used ("; says "train_batch_size: training.global_batch_size = 32"; says "steps_per_print: "; says "my_own_key: unknown key"
prints "global_batch_size: 32"; prints "# ds.json:2"; prints "# Not understood: my_own_key"
expect 2 import ds.json --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --strict; says "my_own_key"
expect 0 import ds.json --model llama-2-7b --cluster dgx-a100 --sequence-length 2048 --strict --without my_own_key -o job.yaml
prints "used ("; prints "my_own_key: left out, as asked"
expect 0 run job.yaml -q
# The written scenario is the scenario with `from`.
printf 'title: ds.json\nmodel: llama-2-7b\ncluster: {node: dgx-a100}\ntraining: {from: deepspeed, path: ds.json, sequence_length: 2048}\n' >from.yaml
expect 0 run job.yaml --json; grep -o '"scenario_hash": *"[^"]*"' out >a; expect 0 run from.yaml --json; grep -o '"scenario_hash": *"[^"]*"' out >b
cmp -s a b && [ -s a ] || complain "import -o and from: differ"
expect 2 run from.yaml --set training.strict=true; says "my_own_key"
expect 2 run from.yaml --set training.from=deepspead; says "Did you mean deepspeed"

# Detection, and what is none.
printf 'hello: world\n' >none.yaml; expect 2 import none.yaml; says "is no configuration of a framework"
expect 2 import missing.json; says "no such file"
printf '{"train_batch_size": 8,\n "a" 3}\n' >broken.json; expect 2 import broken.json; says "broken.json:2:"
expect 2 import ds.json --framework deepspead; says "Did you mean deepspeed"
printf 'pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 --global-batch-size 8 --bf16\n' >run.sh
expect 0 import run.sh --cluster dgx-h100 -o megatron.yaml; expect 0 run megatron.yaml -q
printf '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 2048\n[parallelism]\ntensor_parallel_degree = 2\n' >titan.toml
expect 0 import titan.toml --cluster dgx-h100 -o titan.yaml; expect 0 run titan.yaml -q
printf 'distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 4\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n' >fsdp.yaml
expect 2 import fsdp.yaml --model llama-3-8b --cluster dgx-h100 --sequence-length 2048; says "the batch is in the training script"
expect 0 import fsdp.yaml --model llama-3-8b --cluster dgx-h100 --sequence-length 2048 --set training.micro_batch_size=1 -o fsdp_job.yaml; expect 0 run fsdp_job.yaml -q
# The mark ends with the word of a script, and degrees beyond the cluster say how many nodes they take.
printf 'torchrun --nnodes $NODES run.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1 --bf16\n' >open.sh
expect 2 import open.sh --framework megatron --cluster dgx-h100; says "open.sh:1:19"; checks=$((checks + 1)); grep -q '  \^\{6\}$' err || complain "the mark is not as long as the word"
sed 's/--bf16/--bf16 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4/' run.sh >large.sh
expect 2 import large.sh --cluster dgx-h100; says "large.sh:1:"; says "parallelism.tensor: tensor 8 x pipeline 4 does not divide 8 GPUs: one replica takes 32"; says "--nodes 4"
# Branches of a script: bash is the oracle of which are taken.
cat >branches.sh <<'SH'
SIZE=$1
NODES=$2
LAYERS=2
if [ $SIZE = small ]; then
  LAYERS=4
elif [ "$SIZE" == large ] && [[ $NODES -gt 1 ]]; then
  LAYERS=6; if test $NODES != 8
  then LAYERS=8
  else
    LAYERS=10
  fi
elif [ $NODES -le 2 ] || [ ! "$SIZE" = other ]; then LAYERS=12
else
  LAYERS=14; fi
if [ -z "$EXTRA" ]; then heads=8; else heads=16; fi
if [ "$RECOMPUTE" = true ]; then
  options="--recompute-activations"
elif [ "$RECOMPUTE" = false ]; then
  options=" "
fi
$RUN pretrain_gpt.py --num-layers $LAYERS --hidden-size 512 --num-attention-heads $heads --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 --global-batch-size 8 --bf16 $options
SH
for size in small large other; do
  for nodes in 1 2 8; do
    for extra in "" x; do
      for recompute in true false; do
        expect 0 import branches.sh --cluster dgx-h100 --arguments "$size $nodes" --variable EXTRA=$extra --variable RECOMPUTE=$recompute
        arguments=$(EXTRA=$extra RECOMPUTE=$recompute RUN=echo bash branches.sh $size $nodes)
        prints "layers: $(echo "$arguments" | sed 's/.*--num-layers \([0-9]*\).*/\1/')  "
        prints "heads: $(echo "$arguments" | sed 's/.*--num-attention-heads \([0-9]*\).*/\1/')  "
        checks=$((checks + 1)); [ "$(grep -c 'recompute: selective' out)" -eq "$(echo "$arguments" | grep -c recompute-activations)" ] || complain "recomputation under RECOMPUTE=$recompute"
      done
    done
  done
done
# A variable that is set where nothing decides has one of several values, and so has what is made of it: it decides nothing either.
cat >open.sh <<'SH'
if [ -f /etc/x ]; then MODE=big; else MODE=small; fi
SIZE=$MODE
if [ $SIZE = big ]; then L=8; fi
if [ $MODE = small ]; then H=512; fi
MODE=big
if [ $MODE = big ]; then B=1; else B=7; fi
pretrain_gpt.py --num-layers $L --hidden-size $H --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 --vocab-size 1000 --global-batch-size 8 --micro-batch-size $B --bf16
SH
expect 0 import open.sh --cluster dgx-h100; prints "layers: 8  "; prints "hidden: 512  "; prints "micro_batch_size: 1  "
# What nobody gives stays open, and every branch of it is read; what is given has to be used.
expect 0 import branches.sh --cluster dgx-h100; prints "layers: 14  "; prints "recompute: selective"
expect 2 import branches.sh --cluster dgx-h100 --variable EXTRAS=1; says "the script does not use it"
expect 2 import branches.sh --cluster dgx-h100 --variable LAYERS=1; says "sets it itself"
expect 2 import branches.sh --cluster dgx-h100 --variable LAYERS; says "no variable with its value"
expect 2 import ds.json --cluster dgx-h100 --variable LAYERS=2; says "is given, but"
sed 's/num-layers \$LAYERS/num-layers $3/' branches.sh >third.sh
expect 2 import third.sh --cluster dgx-h100; says "--arguments 'A B ...'"
expect 0 import third.sh --cluster dgx-h100 --arguments "small 1 16"; prints "layers: 16  "
sed '1i while [ $# -gt 0 ]; do case $1 in --size) SIZE=$2; shift 2;; esac; done' branches.sh >loop.sh
expect 2 import loop.sh --cluster dgx-h100 --arguments "small 1"; says "loop.sh:1:1"; says "shift"
printf 'cluster: {node: dgx-h100}\ntraining: {from: megatron, path: branches.sh, variables: {1: large, 2: 8, EXTRA: x}}\n' >variables.yaml
expect 0 explain variables.yaml --stage scenario; prints "layers: 10"; prints "heads: 16"
expect 2 run variables.yaml --set training.variables=[1]; says "variables of the imported script"
