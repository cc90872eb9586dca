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
