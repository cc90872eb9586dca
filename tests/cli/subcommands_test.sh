# The other subcommands.
scenario small.yaml
for stage in scenario model layout schedule plan costs timeline memory; do
  expect 0 explain small.yaml --stage $stage; silent_err
  checks=$((checks + 1)); [ -s out ] || complain "explain --stage $stage prints nothing"
done
expect 0 explain small.yaml --stage costs; prints "TFLOPS"; prints "GB/s"; prints "all_gather"
checks=$((checks + 1)); ! grep -q '^  [^ ].*\.\.\. ' out || complain "a name of explain --stage costs is cut"
expect 0 explain small.yaml --stage schedule; checks=$((checks + 1)); ! grep -q "virtual stage" out || complain "virtual stages where there are none"

expect 0 compare small.yaml --set-b memory.recompute=full; prints "memory.recompute"; prints "times faster"; narrow out
expect 0 compare small.yaml small.yaml; prints "the same"
expect 0 compare small.yaml --set-b memory.recompute=full --json; prints "speed_ratio_b_over_a"
expect 2 compare small.yaml; says "something to compare with"

# A sweep gives exactly the numbers of run, in the same order for any number of threads.
expect 0 sweep small.yaml --over memory.recompute=none,full --over training.micro_batch_size=1,2,3 --format csv -j 1; cp out one.csv
expect 0 sweep small.yaml --over memory.recompute=none,full --over training.micro_batch_size=1,2,3 --format csv -j 4
checks=$((checks + 1)); cmp -s out one.csv || complain "the sweep depends on the number of threads"
checks=$((checks + 1)); [ "$(wc -l <out)" -eq 7 ] || complain "6 points should give 7 lines"
prints "none,3,invalid"; prints "not a multiple"
expect 0 run small.yaml --json --set memory.recompute=full --set training.micro_batch_size=2
checks=$((checks + 1)); step=$(sed -n 's/^  "step_time_s": \(.*\),$/\1/p' out); grep -q "^full,2,fits,8,$step," one.csv || complain "sweep and run disagree: $step"
expect 0 sweep small.yaml --over memory.recompute=none,full -o points.jsonl; prints "Rank"; prints "2 combinations"; narrow out
checks=$((checks + 1)); [ "$(wc -l <points.jsonl)" -eq 2 ] || complain "points.jsonl has not 2 lines"
expect 1 sweep small.yaml --over data_parallel.kind=ddp --set model=llama-3-70b; prints "0 fit"
expect 2 sweep small.yaml; says "nothing to vary"
expect 2 sweep small.yaml --over no.such.key=1,2; says "unknown key"; says "--> --over no"
expect 2 sweep small.yaml --over memory.recompute=; says "needs a key and values"
expect 2 sweep small.yaml --over memory.recompute=none -o points.xlsx; says "csv or jsonl"
printf 'sweep:\n  memory.recompute: [none, full]\n  parallelism.tensor: [1, 2]\n' >>small.yaml
expect 0 sweep small.yaml -q --format jsonl; silent_err
checks=$((checks + 1)); [ "$(wc -l <out)" -eq 4 ] || complain "the scenario's own sweep has 4 points"

expect 0 hardware list; prints "h100-sxm"; prints "dgx-h100"; prints "rail-fat-tree"
expect 0 hardware show h100-sxm; prints "989.4 TFLOPS"; prints "datasheet"
expect 0 hardware show dgx-h100; prints "8 x h100-sxm"
expect 0 model list; prints "llama-3-8b"
expect 0 model show llama-3-8b; prints "8030261248"
expect 0 model show mistral-nemo; prints "other names     mistral-nemo-12b"
expect 0 model show Llama-3-8B; prints "8030261248"
expect 0 model show meta-llama/Meta-Llama-3-8B; prints "8030261248"
printf '{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 5632, "vocab_size": 32000}' >config.json
expect 0 model show config.json; prints "hidden          2048"
expect 0 framework list; prints "torchtitan"
expect 0 framework show megatron-core; prints "kernel_host"
expect 0 framework show huggingface-mixed; prints "Keys that are not named are those of huggingface."
printf 'row_id,framework,gpu,n_gpus,model,seq_len,global_batch,micro_batch,step_time_s,precison,mine\na,torchtitan,h100-sxm,8,llama-3-8b,8192,16,1,2.5,bf16,x\nb,nobodys,h100-sxm,8,llama-3-8b,8192,16,1,2.5,bf16,x\n' >runs.csv
expect 0 validate runs.csv; prints "runs.csv: precison (precision?)"; prints "runs.csv: mine"; prints "1  no profile of framework 'nobodys', simulated as"
prints "(b)"; prints "framework 'torchtitan' without a date is read as torchtitan-2025"
checks=$((checks + 1)); ! grep -q "over 0 sources" out || complain "a mean over no sources is shown"
expect 0 validate runs.csv --json; prints '"unread_columns"'
expect 0 validate "$scenarios"/../tests/accuracy/runs/rocm_tables.csv; checks=$((checks + 1)); ! grep -q "not read" out || complain "a column of the contract is said not to be read"
expect 0 schema; prints '"$schema"'
expect 0 reference; prints "| \`sequence_length\` |"
expect 0 doctor; prints "all is well"; prints "scenarios           $(find "$scenarios" -name '*.yaml' | wc -l) of"
expect 0 --help; prints "Exit codes"
expect 0 --version; prints "rehearse "
expect 0 run --help; prints "Examples"
expect 0 model show --help; prints "rehearse model show llama-3-8b"
