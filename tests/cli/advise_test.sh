# advise, max-batch, max-model: answers, exit codes, JSON.
scenario job.yaml
expect 0 advise job.yaml -q; prints "As it is: fits"; prints "At the end: fits"; narrow out
prints "Looked at last, and nothing that fits is 1 % faster:"
expect 0 advise job.yaml --json -q; prints '"settings"'
expect 2 advise nowhere.yaml; says "nowhere.yaml"
expect 0 max-batch job.yaml -q; prints "Largest that fits:"; narrow out
expect 0 max-model job.yaml -q; prints "Largest that fits:"; narrow out
# A job that cannot fit, whatever is changed: a model of 10 TB on one node.
scenario huge.yaml 's/layers: 4, hidden: 1024, heads: 8, kv_heads: 4, ffn_hidden: 2816/layers: 128, hidden: 65536, heads: 512, kv_heads: 512, ffn_hidden: 262144/'
expect 1 advise huge.yaml -q; prints "Nothing near it fits"
# Out of memory names the cheapest change that fits.
scenario tight.yaml 's/layers: 4, hidden: 1024, heads: 8, kv_heads: 4, ffn_hidden: 2816/layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn_hidden: 14336/; s/sequence_length: 1024/sequence_length: 16384/'
expect 1 run tight.yaml; prints "Cheapest change that fits: "; narrow out
# What is short may be the host's memory, not the GPUs'.
expect 0 max-model job.yaml -q --set training.framework=deepspeed --set data_parallel.kind=zero3 --set memory.offload.optimizer=cpu --set memory.offload.parameters=cpu --set training.sequence_length=128 --set memory.recompute=full
prints "host is full"; narrow out
# Where not even the smallest can be simulated, the reason is told: widths of the models that are tried are powers of two.
expect 1 max-model job.yaml -q --set 'model={layers: 4, hidden: 1280, heads: 10, kv_heads: 5, ffn_hidden: 2800, vocab: 32000}' --set cluster.gpus_per_node=5 --set parallelism.tensor=5 --set training.global_batch_size=5
prints "can be simulated: parallelism.tensor"; narrow out
# Instead of a model with experts dense ones are tried.
expect 0 max-model job.yaml -q --set model=mixtral-8x7b --set parallelism.expert=8; prints "parallelism.expert=1"
# The largest is printed as a command line, and runs.
expect 0 max-batch job.yaml -q; prints "To run the largest:"; prints "global batch"
# Offload only where nothing else fits: what that came to, and what would fit otherwise, is told; the command runs.
expect 0 advise tight.yaml -q --set cluster.gpus_per_node=1 --set training.global_batch_size=4 --set training.sequence_length=2048
prints "Without offload nothing near it fits: the least was"; prints "What fits on the GPUs if it may be another job or more machines"; prints "2 GPUs"; narrow out
