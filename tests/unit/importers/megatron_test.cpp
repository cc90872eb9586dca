// Megatron-LM's arguments in each of their forms. Names and defaults: megatron/training/arguments.py of August 2026.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "sim/config/document.h"
#include "sim/importers/argument_text.h"
#include "sim/importers/list_expression.h"
#include "sim/importers/megatron.h"
#include "sim/importers/readers.h"
#include "tests/unit/importers/helpers.h"

namespace rehearse::importers::megatron_test {
namespace {

Imported read(const std::string& text, const Context& context = eight_gpus()) { return import_text(text, "job.sh", "megatron", context); }
std::string refused(const std::string& text, const Context& context = eight_gpus()) {
  return error_of([&] { read(text, context); });
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A launch script as people write them: variables with defaults, arrays, a condition, arithmetic, continued lines.
const char* const kScript = R"sh(#!/bin/bash
GPUS_PER_NODE=8
NNODES=${NNODES:-4}
TP=4
GLOBAL_BATCH=$((TP * 32))
MODEL_ARGS=(
    --num-layers 80            # Llama 3 70B
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --swiglu
    --normalization RMSNorm
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope --rotary-base 500000
    --vocab-size 128256
    --hidden-dropout 0 --attention-dropout 0.0
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size $GLOBAL_BATCH \
    --bf16 --lr 3.0e-4 --clip-grad 1.0"
PARALLEL=(
  --tensor-model-parallel-size $TP --sequence-parallel
  --pipeline-model-parallel-size 4
  --num-layers-per-virtual-pipeline-stage 5
  --use-distributed-optimizer --overlap-grad-reduce
)
if [[ "$RECOMPUTE" == "yes" ]]; then
  PARALLEL+=("--recompute-granularity selective")
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes=$NNODES pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS "${PARALLEL[@]}" \
  --seq-length 8192 --max-position-embeddings 8192 --data-path /data/corpus --save-interval 1000
)sh";

TEST(MegatronScript, ReadsModelBatchAndDegrees) {
  const Imported i = read(kScript);
  EXPECT_EQ(key(i, "training.framework"), "megatron-core");
  EXPECT_EQ(key(i, "training.sequence_length"), "8192");
  EXPECT_EQ(key(i, "training.global_batch_size"), "128");
  EXPECT_EQ(key(i, "training.micro_batch_size"), "1");
  EXPECT_EQ(key(i, "training.precision"), "bf16");
  EXPECT_EQ(key(i, "parallelism.tensor"), "4");
  EXPECT_EQ(key(i, "parallelism.pipeline"), "4");
  EXPECT_EQ(key(i, "parallelism.sequence_parallel"), "true");
  EXPECT_EQ(key(i, "pipeline.virtual_stages"), "4");  // 80 layers / 4 stages / 5 layers
  EXPECT_EQ(key(i, "pipeline.schedule"), "interleaved-1f1b");
  EXPECT_EQ(key(i, "data_parallel.kind"), "distributed-optimizer");
  EXPECT_EQ(key(i, "data_parallel.overlap_gradient_reduce"), "true");
  EXPECT_EQ(key(i, "memory.recompute"), "selective");
  EXPECT_EQ(key(i, "cluster.nodes"), "4");
  EXPECT_EQ(key(i, "cluster.gpus_per_node"), "8");
  EXPECT_EQ(key(i, "model.kv_heads"), "8");
  EXPECT_EQ(key(i, "model.gated_mlp"), "true");
  EXPECT_EQ(key(i, "model.norm"), "rms_norm");
  EXPECT_EQ(key(i, "model.biases"), "[]");
  EXPECT_EQ(key(i, "model.tied_embeddings"), "false");
  EXPECT_EQ(key(i, "model.position"), "rotary");
  EXPECT_EQ(key(i, "model.dropout"), "0");
  EXPECT_TRUE(i.report.not_understood.empty()) << i.report.not_understood.front().key;
  EXPECT_TRUE(i.unsimulated.empty());
}

TEST(MegatronScript, PlacesAreThoseOfTheScript) {
  const Imported i = read(kScript);
  EXPECT_EQ(to_string(find_dotted(i.keys, "model.layers")->at()), "job.sh:7:18");
  EXPECT_EQ(to_string(find_dotted(i.keys, "training.micro_batch_size")->at()), "job.sh:21:35");
  EXPECT_EQ(to_string(find_dotted(i.keys, "training.sequence_length")->at()), "job.sh:33:16");
}

TEST(MegatronScript, VariablesThatTheScriptDoesNotSetAreNamed) {
  const std::string text = refused("pretrain_gpt.py --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --global-batch-size 8 --seq-length 32");
  EXPECT_TRUE(has(text, "num_layers: needs a whole number, not '$LAYERS'")) << text;
  EXPECT_TRUE(has(text, "The script does not set it")) << text;
  EXPECT_TRUE(has(text, "training.without: [num_layers]")) << text;
}

// A launcher and the program on one line: the program is not a value of the launcher's last argument.
TEST(MegatronScript, TheProgramEndsTheLaunchersArguments) {
  const std::string rest = " --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --vocab-size 50304";
  for (const char* launcher : {"torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py", "torchrun --nproc-per-node 8 --nnodes 2 ../../pretrain_gpt.py",
                               "python -m torch.distributed.launch --nproc_per_node=8 --nnodes 2 /opt/megatron/pretrain_gpt.py", "deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py"}) {
    const Imported i = read(launcher + rest);
    EXPECT_EQ(key(i, "cluster.nodes"), "2") << launcher;
    EXPECT_EQ(key(i, "cluster.gpus_per_node"), "8") << launcher;
    EXPECT_TRUE(i.report.not_understood.empty()) << launcher;
  }
}

constexpr const char* kSmall = " --num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 --seq-length 32 --max-position-embeddings 32";

// An encoder's arguments look like a decoder's: only the program tells them apart.
TEST(MegatronScript, TheProgramTellsWhichModelItTrains) {
  const std::string rest = std::string(kSmall) + " --global-batch-size 8 --vocab-size 512";
  EXPECT_EQ(fate(read("torchrun pretrain_gpt.py" + rest), "program"), "used");
  for (const char* other : {"pretrain_bert.py", "/opt/megatron/pretrain_t5.py", "pretrain_vision_classify.py", "pretrain_vlm.py"})
    EXPECT_EQ(fate(read(other + rest), "program"), "not simulated") << other;
  // What makes data or converts checkpoints beside it is no program of interest.
  EXPECT_EQ(fate(read("python pretrain_gpt.py" + rest + "\npython tools/bert_convert.py --loader x\n"), "program"), "used");
}

// args.global_batch_size = args.micro_batch_size * args.data_parallel_size (megatron/training/arguments.py).
TEST(MegatronScript, WithoutAGlobalBatchNothingIsAccumulated) {
  const std::string rest = std::string(kSmall) + " --vocab-size 512";
  EXPECT_EQ(key(read("pretrain_gpt.py --tensor-model-parallel-size 2" + rest), "training.global_batch_size"), "8");          // 2 x 8 / 2
  EXPECT_EQ(key(read("torchrun --nnodes 4 --nproc_per_node 4 pretrain_gpt.py" + rest), "training.global_batch_size"), "32");  // 2 x 16
  EXPECT_TRUE(has(refused("pretrain_gpt.py --tensor-model-parallel-size 3" + rest), "global_batch_size: is not among the arguments"));
  EXPECT_TRUE(has(refused("pretrain_gpt.py" + rest, Context{}), "global_batch_size: is not among the arguments"));
  // A degree of nothing in the scenario itself is refused there; here it must divide nothing.
  Context wrong = eight_gpus();
  wrong.scenario = config::parse_document("parallelism: {tensor: 0}\n", "job.yaml").root;
  EXPECT_TRUE(has(refused("pretrain_gpt.py" + rest, wrong), "global_batch_size: is not among the arguments"));
}

TEST(MegatronScript, ATokenizerMayNameAModelWhoseVocabularyIsKnown) {
  const std::string rest = std::string(kSmall) + " --global-batch-size 8 --tokenizer-type ";
  EXPECT_EQ(key(read("pretrain_gpt.py" + rest + "HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B"), "model.vocab"), "128256");
  EXPECT_EQ(key(read("pretrain_gpt.py" + rest + "Llama2Tokenizer --tokenizer-model /data/tokenizer.model"), "model.vocab"), "32000");
  EXPECT_TRUE(has(refused("pretrain_gpt.py" + rest + "HuggingFaceTokenizer --tokenizer-model /data/ours"), "vocab_size: the vocabulary's size is not among the arguments"));
}

// What no argument states stands under what was assumed, not under what the file says.
TEST(MegatronScript, DefaultsAreNotCalledArgumentsOfTheFile) {
  const Imported i = read("pretrain_gpt.py" + std::string(kSmall) + " --global-batch-size 8 --vocab-size 512");
  EXPECT_EQ(key(i, "training.optimizer"), "adamw");
  EXPECT_EQ(fate(i, "optimizer"), "-");
  EXPECT_EQ(fate(i, "add_qkv_bias"), "-");
}

TEST(MegatronScript, NumbersOfFilesAreNoValues) {
  const Imported i = read("pretrain_gpt.py" + std::string(kSmall) + " --global-batch-size 8 --vocab-size 512 --fp16 2>&1 | tee log");
  EXPECT_EQ(key(i, "training.precision"), "fp16");
}

// NVIDIA/Megatron-LM examples/gptoss/02_train.sh: (127, 0) beside the query's own key, every second layer sees everything.
TEST(MegatronScript, SlidingWindows) {
  const std::string rest = std::string(kSmall) + " --global-batch-size 8 --vocab-size 512";
  const Imported half = read("pretrain_gpt.py" + rest + " --window-size 127,0 --window-attn-skip-freq 2");
  EXPECT_EQ(key(half, "model.windows.size"), "128");
  EXPECT_EQ(key(half, "model.windows.pattern"), "LG");
  EXPECT_EQ(key(read("pretrain_gpt.py" + rest + " --window-size '(127, 0)' --window-attn-skip-freq '[1,0]*1+[1]*2'"), "model.windows.pattern"), "LGLL");
  EXPECT_EQ(key(read("pretrain_gpt.py" + rest + " --window-size 127,0"), "model.windows.size"), "128");
  EXPECT_EQ(fate(read("pretrain_gpt.py" + rest + " --window-attn-skip-freq 2"), "window_attn_skip_freq"), "used");
  EXPECT_EQ(fate(read("pretrain_gpt.py" + rest + " --window-size 127,127"), "window_size"), "not simulated");
  EXPECT_TRUE(has(refused("pretrain_gpt.py" + rest + " --window-size 127"), "window_size: '127' is no window"));
  EXPECT_TRUE(has(refused("pretrain_gpt.py" + rest + " --window-size 127,0 --window-attn-skip-freq '[1,0]'"), "window_attn_skip_freq: is neither"));
}

TEST(MegatronScript, RotaryEmbeddingByOperators) {
  const std::string rest = "pretrain_gpt.py" + std::string(kSmall) + " --global-batch-size 8 --vocab-size 512";
  EXPECT_EQ(key(read(rest + " --no-rope-fusion"), "training.fused_rope"), "false");
  EXPECT_EQ(key(read(rest), "training.fused_rope"), "-");
}

TEST(MegatronScript, GarbageIsCollectedWhenTheScriptSaysSo) {
  const std::string rest = "pretrain_gpt.py" + std::string(kSmall) + " --global-batch-size 8 --vocab-size 512";
  EXPECT_EQ(key(read(rest + " --manual-gc --manual-gc-interval 5"), "training.collection_interval"), "5");
  EXPECT_EQ(key(read(rest + " --manual-gc"), "training.collection_interval"), "-");
  EXPECT_EQ(key(read(rest + " --manual-gc-interval 5"), "training.collection_interval"), "-");
}

// Megatron-Bridge switches it on by the number of layers, scripts of before by --cpu-offloading.
TEST(MegatronScript, ActivationsOfTheFirstLayersGoToTheHost) {
  const std::string rest = "pretrain_gpt.py" + std::string(kSmall) + " --global-batch-size 8 --vocab-size 512";
  for (const char* asked : {" --cpu-offloading-num-layers 5", " --cpu-offloading --cpu-offloading-num-layers 5"}) {
    const Imported i = read(rest + asked);
    EXPECT_EQ(key(i, "memory.offload.activations"), "cpu");
    EXPECT_EQ(key(i, "memory.offload.activation_layers"), "5");
  }
  for (const char* not_asked : {"", " --cpu-offloading-num-layers 0", " --cpu-offloading"}) EXPECT_EQ(key(read(rest + not_asked), "memory.offload.activations"), "-") << not_asked;
  EXPECT_EQ(fate(read(rest + " --cpu-offloading --cpu-offloading-num-layers 5 --cpu-offloading-weights"), "cpu_offloading_weights"), "not simulated");
  EXPECT_EQ(key(read(rest + " --cpu-offloading-num-layers 5 --no-cpu-offloading-activations"), "memory.offload.activations"), "-");
}

TEST(MegatronScript, ListsOfLayersAreReadAsPythonReadsThem) {
  using List = std::vector<std::int64_t>;
  EXPECT_EQ(parse_list_expression("([0]*1+[1]*3)"), (List{0, 1, 1, 1}));
  EXPECT_EQ(parse_list_expression("([0,1]*2)"), (List{0, 1, 0, 1}));
  EXPECT_EQ(parse_list_expression("( [1]*2 + [0] ) * 2"), (List{1, 1, 0, 1, 1, 0}));
  EXPECT_EQ(parse_list_expression("[]*5"), List{});
  for (const char* wrong : {"", "3", "[1", "[1]*", "[1]*-2", "([1]", "[1]+", "[1]x", "[1]*1000000", "[[1]]", "[1,]"}) EXPECT_FALSE(parse_list_expression(wrong)) << wrong;
  EXPECT_FALSE(parse_list_expression(std::string(100, '(') + "[1]"));
  const std::string rest = std::string(kSmall) + " --global-batch-size 8 --vocab-size 512 --num-experts 8 --moe-ffn-hidden-size 64 --moe-layer-freq ";
  EXPECT_EQ(key(read("pretrain_gpt.py" + rest + "'([0,1]*2)'"), "model.experts.every"), "2");
  EXPECT_EQ(key(read("pretrain_gpt.py" + rest + "'([0]*1+[1]*3)'"), "model.experts.dense_first"), "1");
  EXPECT_EQ(fate(read("pretrain_gpt.py" + rest + "'[1,0]*2'"), "moe_layer_freq"), "not simulated");
  EXPECT_TRUE(has(refused("pretrain_gpt.py" + rest + "'([0,1]*3)'"), "moe_layer_freq: describes 6 layers, but the model has 4"));
}

// BigScience's scripts write DeepSpeed's file when they run: it is not there yet, and the argument that names it is the place to mend.
TEST(MegatronScript, ADeepSpeedFileThatIsMissingIsMendedWhereItIsNamed) {
  Context c = eight_gpus();
  c.beside = "/nowhere";
  const std::string rest = " --num-layers 4 --hidden-size 64 --num-attention-heads 4 --global-batch-size 8 --micro-batch-size 1 --seq-length 32 --vocab-size 512";
  const std::string later = refused("pretrain_gpt.py --deepspeed_config ./ds_config.$SLURM_JOB_ID.json" + rest, c);
  EXPECT_TRUE(has(later, "job.sh:1:36: deepspeed_config: /nowhere/./ds_config.$SLURM_JOB_ID.json: no such file")) << later;
  EXPECT_TRUE(has(later, "The script writes it when it runs")) << later;
  EXPECT_TRUE(has(later, "training.without: [deepspeed_config]")) << later;
  EXPECT_FALSE(has(refused("pretrain_gpt.py --deepspeed_config ds.json" + rest, c), "The script writes it"));
}

// What Megatron prints at start-up, behind a launcher's prefix.
const char* const kLog = R"(some launcher speaks
0: ------------------------ arguments ------------------------
0:   accumulate_allreduce_grads_in_fp32 .............. True
0:   add_bias_linear ................................. True
0:   attention_backend ............................... AttnBackend.auto
0:   attention_dropout ............................... 0.1
0:   bf16 ............................................ True
0:   clip_grad ....................................... 1.0
0:   consumed_train_samples .......................... 0
0:   context_parallel_size ........................... 1
0:   cross_entropy_loss_fusion ....................... False
0:   data_parallel_size .............................. 8
0:   decoder_first_pipeline_num_layers ............... None
0:   ddp_bucket_size ................................. None
0:   expert_model_parallel_size ...................... 1
0:   expert_tensor_parallel_size ..................... 2
0:   ffn_hidden_size ................................. 8192
0:   fp8 ............................................. None
0:   fp8_recipe ...................................... delayed
0:   global_batch_size ............................... 64
0:   gradient_accumulation_fusion .................... True
0:   group_query_attention ........................... False
0:   hidden_dropout .................................. 0.1
0:   hidden_size ..................................... 2048
0:   kv_channels ..................................... 128
0:   make_vocab_size_divisible_by .................... 128
0:   max_position_embeddings ......................... 2048
0:   micro_batch_size ................................ 2
0:   num_attention_heads ............................. 16
0:   num_experts ..................................... None
0:   num_layers ...................................... 24
0:   num_query_groups ................................ 1
0:   optimizer ....................................... adam
0:   optimizer_cpu_offload ........................... False
0:   overlap_grad_reduce ............................. False
0:   padded_vocab_size ............................... 50432
0:   params_dtype .................................... torch.bfloat16
0:   pipeline_model_parallel_size .................... 1
0:   position_embedding_type ......................... learned_absolute
0:   recompute_granularity ........................... None
0:   seq_length ...................................... 2048
0:   sequence_parallel ............................... False
0:   some_option_of_tomorrow ......................... None
0:   swiglu .......................................... False
0:   tensor_model_parallel_size ...................... 2
0:   tp_comm_overlap ................................. False
0:   transformer_impl ................................ transformer_engine
0:   untie_embeddings_and_output_weights ............. False
0:   use_distributed_optimizer ....................... False
0:   vocab_size ...................................... 50257
0:   world_size ...................................... 16
0: -------------------- end of arguments ---------------------
0:  iteration 1/ 100 | elapsed time per iteration (ms): 431.2 | --num-layers 3
)";

TEST(MegatronLog, ReadsThePrintedArguments) {
  const Imported i = import_text(kLog, "train.log", "", eight_gpus());
  EXPECT_EQ(i.framework, "megatron");
  EXPECT_EQ(key(i, "model.layers"), "24");
  EXPECT_EQ(key(i, "model.vocab"), "50432");
  EXPECT_EQ(key(i, "model.kv_heads"), "-");  // num_query_groups says nothing without group_query_attention
  EXPECT_EQ(key(i, "model.position"), "learned");
  EXPECT_EQ(key(i, "model.max_positions"), "2048");
  EXPECT_EQ(key(i, "model.biases"), "[qkv, attention_output, mlp]");
  EXPECT_EQ(key(i, "model.dropout"), "0.1");
  EXPECT_EQ(key(i, "parallelism.tensor"), "2");
  EXPECT_EQ(key(i, "parallelism.expert_tensor"), "-");
  EXPECT_EQ(key(i, "memory.recompute"), "none");
  EXPECT_EQ(key(i, "data_parallel.kind"), "ddp");
  EXPECT_EQ(key(i, "cluster.nodes"), "2");  // 16 GPUs on nodes of eight
  EXPECT_EQ(key(i, "training.transformer_engine"), "true");
  EXPECT_TRUE(i.report.not_understood.empty()) << i.report.not_understood.front().key;
  EXPECT_EQ(fate(i, "some_option_of_tomorrow"), "ignored");
  EXPECT_EQ(to_string(find_dotted(i.keys, "model.layers")->at()), "train.log:31:6");
  expect_complete(i, parse_megatron(kLog, "train.log"));
}

TEST(MegatronYaml, SectionsAndFlagNamesAreTheSameArguments) {
  const char* const yaml = "language_model:\n  num_layers: 24\n  hidden_size: 1024\n  num_attention_heads: 16\n  num_query_groups: 4\nmodel_parallel:\n  tensor_model_parallel_size: 2\n  sequence_parallel: True\nglobal_batch_size: 32\n"
                           "micro_batch_size: 4\nseq_length: 512\nvocab_size: 30522\nbf16: True\nposition_embedding_type: rope\n";
  const Imported i = import_text(yaml, "cfg.yaml", "", eight_gpus());
  EXPECT_EQ(i.framework, "megatron");
  EXPECT_EQ(key(i, "model.kv_heads"), "4");
  EXPECT_EQ(key(i, "parallelism.sequence_parallel"), "true");
  EXPECT_EQ(to_string(find_dotted(i.keys, "model.layers")->at()), "cfg.yaml:2:15");
  const Imported flags = import_text("ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n  --num-layers: 24\n  --hidden-size: 1024\n  --num-attention-heads: 16\n  --micro-batch-size: 4\n  --global-batch-size: 32\n  --seq-length: 512\n"
                                     "  --max-position-embeddings: 512\n  --vocab-size: 30522\n  --bf16: true\n", "model_config.yaml", "megatron", eight_gpus());
  EXPECT_EQ(key(flags, "model.hidden"), "1024");
  EXPECT_EQ(key(flags, "model.ffn_hidden"), "4096");
}

// What PyTorch, CUDA and NCCL read from a job's environment.
TEST(MegatronScripts, EnvironmentIsReadAsTheJobWouldReadIt) {
  const std::string job = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 1024 --num-attention-heads 16 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --bf16\n";
  const auto script = [&](const std::string& before) { return import_text(before + job, "train.sh", "megatron", eight_gpus()); };
  EXPECT_EQ(key(script("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"), "memory.expandable_segments"), "true");
  EXPECT_EQ(key(script("export PYTORCH_ALLOC_CONF=\"max_split_size_mb:512,expandable_segments:False\"\n"), "memory.expandable_segments"), "false");
  EXPECT_EQ(key(script("CUDA_LAUNCH_BLOCKING=1 "), "training.launch_blocking"), "true");
  EXPECT_EQ(find_dotted(script("export CUDA_LAUNCH_BLOCKING=0\n").keys, "training.launch_blocking"), nullptr);
  EXPECT_EQ(find_dotted(script("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512\n").keys, "memory.expandable_segments"), nullptr);
  const std::string timed = "export TORCH_NCCL_ENABLE_TIMING=1\n", queue = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  EXPECT_EQ(key(script(timed + queue), "training.serial_collectives"), "true");
  EXPECT_EQ(find_dotted(script(timed).keys, "training.serial_collectives"), nullptr);
  EXPECT_EQ(find_dotted(script(queue).keys, "training.serial_collectives"), nullptr);
  // The last value counts; where nobody knows whether a line is reached, none does.
  EXPECT_EQ(find_dotted(script(timed + queue + "CUDA_DEVICE_MAX_CONNECTIONS=8\n").keys, "training.serial_collectives"), nullptr);
  EXPECT_EQ(find_dotted(script("if [ \"$DEBUG\" = 1 ]; then\n  export CUDA_LAUNCH_BLOCKING=1\nfi\n").keys, "training.launch_blocking"), nullptr);
  try {
    script("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:maybe\n");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("train.sh:1"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("expandable_segments is 'maybe'"), std::string::npos) << e.what();
  }
}

// arguments.py: ffn_hidden_size is 4 x hidden, or with swiglu two thirds of it as a multiple of 64.
TEST(MegatronDefaults, OfWidthsDropoutAndNorms) {
  const std::string common = "--num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 ";
  EXPECT_EQ(key(read(common), "model.ffn_hidden"), "16384");
  EXPECT_EQ(key(read(common + "--swiglu"), "model.ffn_hidden"), "10880");
  EXPECT_EQ(key(read(common), "model.dropout"), "0.1");
  EXPECT_EQ(key(read(common), "model.norm"), "layer_norm");
  EXPECT_EQ(key(read(common), "training.precision"), "fp32");
  EXPECT_EQ(key(read(common + "--bf16 --fp8-format hybrid"), "training.precision"), "fp8");
  EXPECT_EQ(key(read(common + "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8"), "training.precision"), "mxfp8");
  EXPECT_EQ(key(read(common + "--bf16 --fp8-format hybrid --fp8-param-gather"), "training.fp8_parameters"), "true");
  EXPECT_EQ(fate(read(common + "--bf16 --fp8-param-gather"), "fp8_param_gather"), "used");
  EXPECT_EQ(key(read(common + "--tokenizer-type GPT2BPETokenizer --vocab-size 7"), "model.vocab"), "7");
  const std::string bare = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --global-batch-size 8";
  EXPECT_TRUE(has(refused(bare), "Set model.vocab"));
  EXPECT_EQ(key(read(bare + " --vocab-file v.json --merge-file m.txt"), "model.vocab"), "50257");
}

TEST(Megatron, OptionsOfLayersBecomeOptionsOfTraining) {
  const std::string common = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --bf16 ";
  EXPECT_EQ(key(read(common + "--cross-entropy-loss-fusion"), "training.cross_entropy"), "vocab-parallel-compiled");
  EXPECT_EQ(key(read(common + "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"), "training.cross_entropy"), "fused");
  EXPECT_EQ(key(read(common + "--no-gradient-accumulation-fusion"), "training.fused_gradient_accumulation"), "false");
  EXPECT_EQ(key(read(common + "--transformer-impl local"), "training.attention"), "unfused");
  EXPECT_EQ(key(read(common + "--grad-reduce-in-bf16 --ddp-bucket-size 1000"), "data_parallel.bucket"), "2000 B");
  // The precision-aware optimizer's main gradients are the buffers themselves: in bf16, those are not widened (arguments.py).
  const std::string aware = common + "--use-precision-aware-optimizer --main-grads-dtype bf16 ";
  EXPECT_EQ(key(read(aware), "data_parallel.gradient_dtype"), "bf16");
  EXPECT_EQ(key(read(aware), "data_parallel.reduce_dtype"), "bf16");
  EXPECT_EQ(key(read(aware + "--ddp-bucket-size 1000"), "data_parallel.bucket"), "2000 B");
  EXPECT_EQ(key(read(common + "--use-precision-aware-optimizer --main-grads-dtype fp32"), "data_parallel.gradient_dtype"), key(read(common), "data_parallel.gradient_dtype"));
  for (const std::string& wrong : {aware + "--accumulate-allreduce-grads-in-fp32", common + "--main-grads-dtype bf16", common + "--use-precision-aware-optimizer --main-grads-dtype fp8"})
    EXPECT_EQ(fate(read(wrong), "main_grads_dtype"), "not simulated") << wrong;
  EXPECT_EQ(fate(read(aware), "main_grads_dtype"), "used");
  EXPECT_EQ(key(read(common + "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 1"), "pipeline.layers_per_stage"), "[1, 3, 3, 1]");
  const Imported letters = read(common + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*3|tt|(t|)*1ttL'");
  EXPECT_EQ(key(letters, "pipeline.layers_per_stage"), "[3, 2, 1, 2]");
  EXPECT_EQ(key(letters, "pipeline.virtual_stages"), "2");
  EXPECT_EQ(key(letters, "pipeline.schedule"), "interleaved-1f1b");
  EXPECT_TRUE(has(refused(common + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ett|tt|ttttL'"), "has 3 parts, which do not divide into 2 stages"));
  EXPECT_TRUE(has(refused(common + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'E(tttt|ttttL'"), "is not a pipeline layout"));
  EXPECT_TRUE(has(refused(common + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Etttt|ttttmL'"), "has 1 prediction layers, but mtp_num_layers is 0"));
  // What else is said of the pipeline is read beside it.
  const std::string dealt = common + "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|t|t|t|t|t|t|tL' ";
  EXPECT_EQ(key(read(dealt + "--no-overlap-p2p-communication"), "pipeline.overlap_messages"), "false");
  EXPECT_EQ(key(read(dealt + "--num-virtual-stages-per-pipeline-rank 2"), "pipeline.virtual_stages"), "2");
  EXPECT_TRUE(has(refused(dealt + "--num-virtual-stages-per-pipeline-rank 4"), "4 chunks on each stage, but pipeline_model_parallel_layout has 2"));
  EXPECT_TRUE(has(refused(dealt + "--decoder-first-pipeline-num-layers 1"), "pipeline_model_parallel_layout says what each stage holds"));
  EXPECT_EQ(key(read(common + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"), "memory.recompute"), "full");
  EXPECT_EQ(key(read(common + "--recompute-granularity full --recompute-method block --recompute-num-layers 2"), "memory.recompute_layers"), "2");
  EXPECT_EQ(key(read(common + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4"), "memory.recompute_span"), "4");
  EXPECT_EQ(key(read(common + "--optimizer-cpu-offload --optimizer-offload-fraction 0.5"), "memory.offload.ratio"), "0.5");
  EXPECT_EQ(key(read(common + "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"), "training.optimizer_state_dtype"), "bf16");
  EXPECT_EQ(fate(read(common + "--use-precision-aware-optimizer --exp-avg-dtype fp8"), "exp_avg_dtype"), "not simulated");
  EXPECT_EQ(key(read(common + "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap"), "parallelism.overlap_tensor"), "true");
  EXPECT_EQ(key(read(common + "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication"), "pipeline.overlap_messages"), "false");
  EXPECT_EQ(fate(read(common + "--tensor-model-paralel-size 4"), "tensor_model_paralel_size"), "not understood");
}

TEST(Megatron, ContextParallelismHasItsKind) {
  const std::string common = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --bf16 --context-parallel-size 4 ";
  EXPECT_EQ(key(read(common), "parallelism.context_kind"), "-");   // the profile's ring
  EXPECT_EQ(key(read(common + "--cp-comm-type a2a"), "parallelism.context_kind"), "a2a");
  EXPECT_EQ(key(read(common + "--cp-comm-type all_gather"), "parallelism.context_kind"), "all_gather");
  const Imported hybrid = read(common + "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2");
  EXPECT_EQ(key(hybrid, "parallelism.context_kind"), "a2a+p2p");
  EXPECT_EQ(key(hybrid, "parallelism.context_ulysses"), "2");
  EXPECT_EQ(key(read(common + "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 1 4"), "parallelism.context_kind"), "p2p");
  // A dump repeats the type for every layer.
  EXPECT_EQ(key(read(common + "--cp-comm-type a2a a2a a2a a2a a2a a2a a2a a2a"), "parallelism.context_kind"), "a2a");
  const Imported mixed = read(common + "--cp-comm-type p2p p2p p2p p2p a2a a2a a2a a2a");
  EXPECT_EQ(fate(mixed, "cp_comm_type"), "not simulated");
  EXPECT_TRUE(has(refused(common + "--cp-comm-type a2a+p2p"), "a2a+p2p needs two sizes"));
  EXPECT_TRUE(has(refused(common + "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4"), "2 x 4 are not the 4 context-parallel ranks"));
  EXPECT_TRUE(has(refused(common + "--cp-comm-type ring"), "'ring' is no type"));
}

// deepspeedai/Megatron-DeepSpeed examples_deepspeed/sequence_parallel/ds_pretrain_gpt_6.7B_fpdt_32k.sh.
TEST(Megatron, DeepSpeedsSequencesInChunks) {
  const std::string common = "--num-layers 8 --hidden-size 512 --num-attention-heads 4 --seq-length 262144 --max-position-embeddings 262144 --global-batch-size 8 --vocab-size 1000 --bf16 --ds-sequence-parallel-size 4 ";
  const Imported whole = read(common);
  EXPECT_EQ(key(whole, "parallelism.context"), "4");
  EXPECT_EQ(key(whole, "parallelism.context_kind"), "ulysses");
  EXPECT_EQ(key(whole, "memory.sequence_chunk"), "-");
  EXPECT_EQ(key(read(common + "--ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-offloading"), "memory.sequence_chunk"), "65536");
  const Imported given = read(common + "--ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-chunk-size 32768 --ds-sequence-parallel-fpdt-offloading");
  EXPECT_EQ(key(given, "memory.sequence_chunk"), "32768");
  for (const char* name : {"ds_sequence_parallel_size", "ds_sequence_parallel_fpdt", "ds_sequence_parallel_fpdt_chunk_size", "ds_sequence_parallel_fpdt_offloading"}) EXPECT_EQ(fate(given, name), "used") << name;
  EXPECT_EQ(fate(read(common + "--ds-sequence-parallel-fpdt"), "ds_sequence_parallel_fpdt"), "not simulated");
}

const std::string kGpt = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --global-batch-size 8 --vocab-size 512 --bf16 ";

// v2.5: --checkpoint-activations; v2.6: the method alone. Source: NVIDIA/Megatron-LM megatron/arguments.py of these releases.
TEST(Megatron, EarlySpellingsOfRecomputation) {
  EXPECT_EQ(key(read(kGpt + "--checkpoint-activations --checkpoint-num-layers 1"), "memory.recompute"), "full");
  EXPECT_EQ(key(read(kGpt + "--activations-checkpoint-method uniform"), "memory.recompute"), "full");
  const Imported block = read(kGpt + "--activations-checkpoint-method block --activations-checkpoint-num-layers 2");
  EXPECT_EQ(key(block, "memory.recompute_layers"), "2");
  EXPECT_TRUE(block.report.not_understood.empty());
  EXPECT_EQ(key(read(kGpt + "--checkpoint-activations --checkpoint-num-layers 2"), "memory.recompute_span"), "2");
  EXPECT_TRUE(has(refused(kGpt + "--activations-checkpoint-method some"), "activations_checkpoint_method: 'some' is no method"));
}

TEST(Megatron, EarlySpellingsOfPrecisionAndDataParallelism) {
  EXPECT_EQ(key(read(kGpt + "--fp8-hybrid"), "training.precision"), "fp8");
  EXPECT_EQ(key(read(kGpt + "--fp8-e4m3"), "training.precision"), "fp8");
  EXPECT_EQ(key(read(kGpt + "--DDP-impl local"), "data_parallel.overlap_gradient_reduce"), "false");
  EXPECT_EQ(key(read(kGpt + "--DDP-impl torch"), "data_parallel.overlap_gradient_reduce"), "true");
  EXPECT_TRUE(has(refused(kGpt + "--DDP-impl other"), "'other' is no kind of data parallelism"));
}

// megatron/training/arguments.py, validate_args: bf16 switches accumulate_allreduce_grads_in_fp32 on, fp16 does not.
TEST(Megatron, GradientsOfFp16AreSummedInFp16UnlessToldOtherwise) {
  const std::string half = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --global-batch-size 8 --vocab-size 512 --fp16 ";
  for (const char* ours : {"data_parallel.gradient_dtype", "data_parallel.reduce_dtype"}) {
    EXPECT_EQ(key(read(half), ours), "fp16") << ours;
    EXPECT_EQ(key(read(half + "--accumulate-allreduce-grads-in-fp32"), ours), "fp32") << ours;
    EXPECT_EQ(key(read(kGpt), ours), "-") << ours;
  }
  EXPECT_EQ(key(read(half + "--ddp-bucket-size 1000"), "data_parallel.bucket"), "2000 B");
  EXPECT_EQ(key(read(kGpt + "--ddp-bucket-size 1000"), "data_parallel.bucket"), "4000 B");
}

TEST(Megatron, EarlyArgumentsTellAnEarlyMegatron) {
  EXPECT_EQ(key(read(kGpt + "--DDP-impl local"), "training.framework"), "megatron-2021");
  EXPECT_EQ(key(read(kGpt + "--checkpoint-activations"), "training.framework"), "megatron-2021");
  EXPECT_EQ(key(read(kGpt), "training.framework"), "megatron-core");
  EXPECT_EQ(key(read(kGpt + "--position-embedding-type rotary"), "model.position"), "rotary");
  EXPECT_EQ(key(read(kGpt + "--position-embedding-type alibi"), "model.position"), "alibi");
}

TEST(Megatron, InputGradientsThatAreReducedWithoutOverlap) {
  const std::string off = kGpt + "--no-async-tensor-model-parallel-allreduce ";
  constexpr const char* kFlag = "no_async_tensor_model_parallel_allreduce";
  EXPECT_EQ(fate(read(off), kFlag), "used");
  EXPECT_EQ(fate(read(off + "--tensor-model-parallel-size 2"), kFlag), "not simulated");
  EXPECT_EQ(fate(read(off + "--tensor-model-parallel-size 2 --sequence-parallel"), kFlag), "used");
}

TEST(Megatron, GroupsOfMicroBatches) {
  const std::string chunks = kGpt + "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --microbatch-group-size-per-virtual-pipeline-stage ";
  EXPECT_EQ(fate(read(chunks + "2"), "microbatch_group_size_per_virtual_pipeline_stage"), "used");
  EXPECT_EQ(key(read(chunks + "4"), "pipeline.group_size"), "4");
  EXPECT_EQ(fate(read(kGpt + "--microbatch-group-size-per-virtual-pipeline-stage 4"), "microbatch_group_size_per_virtual_pipeline_stage"), "used");  // nothing interleaves
}

TEST(Megatron, MessagesUnderWarmUpAndFlush) {
  const std::string chunks = kGpt + "--overlap-p2p-communication-warmup-flush --pipeline-model-parallel-size 2 ";
  EXPECT_EQ(key(read(chunks + "--num-layers-per-virtual-pipeline-stage 1"), "pipeline.overlap_warmup_flush"), "true");
  EXPECT_EQ(fate(read(chunks), "overlap_p2p_communication_warmup_flush"), "used");
  EXPECT_EQ(key(read(chunks), "pipeline.overlap_warmup_flush"), "-");
}

TEST(Megatron, ParametersGatheredUnderTheUpdate) {
  const Imported i = read(kGpt + "--use-distributed-optimizer --overlap-param-gather --overlap-param-gather-with-optimizer-step --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1");
  EXPECT_EQ(key(i, "data_parallel.gather_under_update"), "true");
  EXPECT_EQ(key(i, "data_parallel.overlap_parameter_gather"), "true");
}

TEST(Megatron, OffloadsByModules) {
  const std::string on = kGpt + "--fine-grained-activation-offloading ";
  const Imported i = read(on + "--offload-modules core_attn expert_fc1 --min-offloaded-tensor-size 350000000 --fine-grained-offloading-max-inflight-offloads 1 --activation-offload-fraction 1.0");
  EXPECT_EQ(key(i, "memory.offload.modules"), "[core_attn, expert_fc1]");
  EXPECT_EQ(key(i, "memory.offload.least_elements"), "350000000");
  EXPECT_EQ(key(i, "memory.offload.in_flight"), "1");
  EXPECT_EQ(fate(i, "activation_offload_fraction"), "used");
  EXPECT_EQ(fate(read(on + "--offload-modules core_attn --activation-offload-fraction 0.5"), "activation_offload_fraction"), "not simulated");
  EXPECT_EQ(fate(read(on + "--offload-modules gdp_qkv"), "offload_modules"), "not simulated");
  EXPECT_TRUE(has(refused(on), "no modules are given"));
  EXPECT_EQ(key(read(kGpt + "--offload-modules core_attn"), "memory.offload.modules"), "-");
}

TEST(Megatron, OneLayerForAllFurtherTokens) {
  const std::string two = kGpt + "--mtp-num-layers 2 --position-embedding-type rope ";
  EXPECT_EQ(key(read(two + "--mtp-use-repeated-layer"), "model.mtp_repeated"), "true");
  EXPECT_EQ(key(read(two), "model.mtp_repeated"), "false");
}

// Megatron's own files have keys twice, and merge keys (tests/functional_tests, model_config.yaml).
TEST(Megatron, YamlAsPythonReadsIt) {
  const Imported i = import_text("BASE: &base\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --vocab-size: 1000\nMODEL_ARGS:\n  <<: *base\n  --seq-length: 128\n  --seq-length: 256\n  --max-position-embeddings: 256\n"
                          "  --micro-batch-size: 1\n  --global-batch-size: 8\n", "model_config.yaml", "megatron", eight_gpus());
  EXPECT_EQ(key(i, "model.layers"), "4");
  EXPECT_EQ(key(i, "training.sequence_length"), "256");
}

TEST(Megatron, ADenseModelHasNoExpertsToCut) {
  const Imported i = read(kGpt + "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 4");
  EXPECT_EQ(key(i, "parallelism.expert_tensor"), "-");
  EXPECT_EQ(fate(i, "expert_tensor_parallel_size"), "used");
  EXPECT_EQ(key(read(kGpt + "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --num-experts 8"), "parallelism.expert_tensor"), "1");
}

// NVIDIA/Megatron-LM c9dfe34798 (Megatron-Core 0.18): NullTokenizer no longer adds an end of documents.
TEST(Megatron, NullTokenizersVocabulary) {
  Context old = eight_gpus();
  old.version = "0.17.0";
  EXPECT_EQ(key(read(kGpt + "--tokenizer-type NullTokenizer"), "model.vocab"), "512");
  EXPECT_EQ(key(read(kGpt + "--tokenizer-type NullTokenizer", old), "model.vocab"), "513");
  EXPECT_EQ(key(read(kGpt, old), "model.vocab"), "512");
}

TEST(Megatron, ModelsThatAreNoDecoderOfTextAlone) {
  EXPECT_EQ(fate(read(kGpt + "--tokenizer-type BertWordPieceCase"), "tokenizer_type"), "not simulated");
  EXPECT_EQ(fate(read(kGpt + "--decoder-num-layers 4"), "decoder_num_layers"), "not simulated");
  EXPECT_EQ(fate(read(kGpt + "--language-model-type mistral_7b"), "language_model_type"), "not simulated");
  EXPECT_EQ(fate(read("torchrun pretrain_qwen3_vl.py " + kGpt), "program"), "not simulated");
  EXPECT_EQ(fate(read(kGpt + "--img-h 336"), "img_h"), "not simulated");
}

TEST(Megatron, TheScenarioStandsInForWhatOnlyRunningWouldTell) {
  const std::string open = "GPUS=`count_them`\ntorchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --vocab-size 512 --bf16 "
                           "--seq-length $LENGTH --global-batch-size $(( A * B )) --tensor-model-parallel-size $TP";
  Context c = eight_gpus();
  Fragment stated;
  for (const auto& [name, value] : {std::pair{"cluster.nodes", "2"}, {"training.sequence_length", "64"}, {"training.global_batch_size", "32"}, {"parallelism.tensor", "2"}}) stated.set(name, value, {});
  c.scenario = stated.tree({});
  const Imported i = read(open, c);
  for (const char* name : {"nproc_per_node", "nnodes", "seq_length", "global_batch_size", "tensor_model_parallel_size"}) EXPECT_EQ(fate(i, name), "used") << name;
  EXPECT_EQ(key(i, "training.sequence_length"), "-");   // the scenario's own
  EXPECT_TRUE(has(refused(open), "seq_length: needs a whole number, not '$LENGTH'"));
  Context bare;
  EXPECT_TRUE(has(refused(open, bare), "nproc_per_node: needs a whole number, not '`count_them`'. Only running the script would tell: write its value there"));
}

TEST(Megatron, ProgramsThatDoNotTrain) {
  EXPECT_EQ(fate(read("torchrun tools/run_text_generation_server.py " + kGpt), "program"), "not simulated");
  EXPECT_EQ(fate(read("python tools/preprocess_data.py --workers 2\ntorchrun pretrain_gpt.py " + kGpt), "program"), "used");   // data are made first
  EXPECT_EQ(fate(read("torchrun main.py " + kGpt), "program"), "-");   // it may be anything
}

TEST(Megatron, EachSpellingOfPositionsIsListed) {
  const Imported i = read(kGpt + "--position-embedding-type learned_absolute --rotary-percent 0.5 --max-position-embeddings 64");
  EXPECT_TRUE(i.report.not_understood.empty());
  const Imported both = read(kGpt + "--position-embedding-type rope --use-rotary-position-embeddings");
  EXPECT_EQ(fate(both, "use_rotary_position_embeddings"), "used");
}

// --hybrid-layer-pattern of core 0.16 on, --hybrid-override-pattern before; a mixer twice as wide as the model unless said otherwise.
TEST(Megatron, HybridModelsStateTheirLayersInLetters) {
  const std::string common = "--hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --global-batch-size 8 --micro-batch-size 1 --vocab-size 1000 ";
  const Imported i = read("torchrun pretrain_mamba.py " + common + "--hybrid-layer-pattern 'M-M*-|M-M*-' --pipeline-model-parallel-size 2 --mamba-num-groups 4");
  EXPECT_EQ(key(i, "model.layers"), "10");
  EXPECT_EQ(key(i, "model.hybrid_pattern"), "M-M*-M-M*-");
  EXPECT_EQ(key(i, "model.state_space.heads"), "32");
  EXPECT_EQ(key(i, "model.state_space.groups"), "4");
  EXPECT_EQ(key(i, "model.state_space.chunk"), "128");
  EXPECT_EQ(key(i, "pipeline.layers_per_stage"), "[5, 5]");
  const Imported parted = read(common + "--hybrid-layer-pattern 'M-|M-|M*|--' --pipeline-model-parallel-size 2");
  EXPECT_EQ(key(parted, "pipeline.virtual_stages"), "2");
  EXPECT_EQ(key(parted, "pipeline.schedule"), "interleaved-1f1b");
  EXPECT_EQ(key(read(common + "--hybrid-override-pattern M-M* --num-layers 4"), "model.hybrid_pattern"), "M-M*");
  const Imported outvoted = read(common + "--hybrid-override-pattern M-M* --num-layers 5");
  EXPECT_EQ(key(outvoted, "model.layers"), "4");
  EXPECT_EQ(fate(outvoted, "num_layers"), "ignored");
  EXPECT_TRUE(has(refused(common + "--hybrid-layer-pattern 'M-|M-|M*' --pipeline-model-parallel-size 2"), "has 3 parts, which do not divide into 2 stages"));
  EXPECT_EQ(fate(read(common + "--hybrid-layer-pattern MDM- --num-layers 4"), "hybrid_layer_pattern"), "not simulated");
  // Behind slashes are further layers for multi-token prediction, which Megatron trains.
  const Imported predicts = read(common + "--hybrid-layer-pattern M-M*/*-/*-");
  EXPECT_EQ(key(predicts, "model.hybrid_pattern"), "M-M*");
  EXPECT_EQ(key(predicts, "model.mtp_layers"), "2");
  EXPECT_EQ(key(predicts, "training.multi_token_prediction"), "true");
  EXPECT_EQ(fate(read(common + "--hybrid-layer-pattern M-M*/MM"), "hybrid_layer_pattern"), "not simulated");
  EXPECT_TRUE(has(refused(common + "--hybrid-layer-pattern M-M*/*- --mtp-num-layers 2"), "has 1 prediction layers, but mtp_num_layers is 2"));
  EXPECT_EQ(key(read(common + "--num-layers 4 --mtp-num-layers 1"), "training.multi_token_prediction"), "true");
}

// Gated delta rules of Qwen3-Next: every so-many-th layer has attention, or a list says which have none. Defaults: megatron/core/transformer/transformer_config.py.
TEST(Megatron, GatedDeltaRulesInPlaceOfAttention) {
  const std::string common = "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --global-batch-size 8 --vocab-size 1000 ";
  const std::string variant = "--experimental-attention-variant gated_delta_net ";
  const Imported i = read(common + variant + "--linear-attention-freq 4 --linear-num-key-heads 8 --linear-value-head-dim 64 --attention-output-gate");
  EXPECT_EQ(key(i, "model.hybrid_pattern"), "DDDT");
  EXPECT_EQ(key(i, "model.delta_net.key_heads"), "8");
  EXPECT_EQ(key(i, "model.delta_net.value_heads"), "32");
  EXPECT_EQ(key(i, "model.delta_net.key_dim"), "128");
  EXPECT_EQ(key(i, "model.delta_net.value_dim"), "64");
  EXPECT_EQ(key(i, "model.delta_net.convolution"), "4");
  EXPECT_EQ(key(i, "model.attention_gate"), "true");
  EXPECT_EQ(key(read(common + variant + "--linear-attention-freq '([1]*1+[0]*3)'"), "model.hybrid_pattern"), "DTTT");
  EXPECT_EQ(find_dotted(read(common + variant + "--linear-attention-freq 1").keys, "model.hybrid_pattern"), nullptr);   // attention everywhere
  EXPECT_TRUE(has(refused(common + variant), "does not say in which layers"));
  EXPECT_TRUE(has(refused(common + variant + "--linear-attention-freq '([1]*3)'"), "describes 3 layers, but the model has 4"));
  EXPECT_TRUE(has(refused(common + variant + "--linear-attention-freq 0"), "0 is not positive"));
  EXPECT_TRUE(has(refused(common + variant + "--linear-attention-freq often"), "neither a number nor a list"));
  EXPECT_EQ(fate(read(common + "--experimental-attention-variant dsa"), "experimental_attention_variant"), "not simulated");
}

TEST(Megatron, ExpertsOfEveryLayerOrOfTheLast) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --num-experts 8 ";
  EXPECT_EQ(key(read(common + "--moe-router-topk 4 --moe-ffn-hidden-size 32"), "model.experts.top_k"), "4");
  EXPECT_EQ(key(read(common + "--moe-layer-freq '([0]*1+[1]*3)'"), "model.experts.dense_first"), "1");
  EXPECT_EQ(key(read(common + "--moe-layer-freq \"'([0]*1+[1]*3)'\""), "model.experts.dense_first"), "1");   // for eval
  EXPECT_EQ(key(read(common), "experts.dispatcher"), "all-gather");
  const Imported flex = read(common + "--moe-token-dispatcher-type flex --moe-enable-deepep --moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity --expert-model-parallel-size 4");
  EXPECT_EQ(key(flex, "experts.dispatcher"), "deepep");
  EXPECT_EQ(key(flex, "experts.capacity_factor"), "1.25");
  EXPECT_EQ(key(flex, "experts.pad_to_capacity"), "true");
  EXPECT_EQ(key(flex, "parallelism.expert"), "4");
  EXPECT_EQ(key(read(common + "--moe-token-dispatcher-type flex --moe-enable-deepep --expert-model-parallel-size 4 --enable-experimental"), "experts.fused_index_map"), "true");
  const Imported hybrid = read(common + "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --expert-model-parallel-size 4");
  EXPECT_EQ(key(hybrid, "experts.dispatcher"), "hybridep");
  EXPECT_EQ(fate(hybrid, "moe_flex_dispatcher_backend"), "used");
  EXPECT_NE(fate(read(common + "--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend hybridep"), "moe_flex_dispatcher_backend"), "used");
  const Imported fused = read(common + "--moe-token-dispatcher-type alltoall --moe-router-fusion --moe-permute-fusion");
  EXPECT_EQ(key(fused, "experts.fused_router"), "true");
  EXPECT_EQ(key(fused, "experts.fused_permute"), "true");
  // Experts by Transformer Engine's operations: gated ones where the environment asks for their kernels.
  const std::string operations = common + "--use-transformer-engine-op-fuser --moe-paged-stash --moe-expert-rank-capacity-factor 1.5 ", kernels = "export NVTE_CUTEDSL_FUSED_GROUPED_MLP=1\n";
  const Imported by_operations = import_text(kernels + "torchrun pretrain_gpt.py " + operations + "--swiglu", "train.sh", "megatron", eight_gpus());
  EXPECT_EQ(key(by_operations, "experts.fused_mlp"), "true");
  EXPECT_EQ(key(by_operations, "experts.rank_capacity_factor"), "1.5");
  EXPECT_EQ(key(by_operations, "experts.paged_stash"), "true");
  EXPECT_EQ(find_dotted(import_text("torchrun pretrain_gpt.py " + common + "--use-transformer-engine-op-fuser --swiglu", "train.sh", "megatron", eight_gpus()).keys, "experts.fused_mlp"), nullptr);
  EXPECT_EQ(fate(read(common + "--moe-paged-stash"), "moe_paged_stash"), "not simulated");
  EXPECT_TRUE(has(refused(common + "--moe-layer-freq '([0]*1+[1]*5)'"), "describes 6 layers, but the model has 4"));
}

// megatron/core/optimizer/optimizer_config.py: use_precision_aware_optimizer_no_fp8_or_ds_fp8.
TEST(Megatron, PrecisionAwareOptimizersHoldTheFp32Copies) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --bf16 ", aware = common + "--use-precision-aware-optimizer ";
  const char* key_of = "profile.parameter_remainders";
  EXPECT_EQ(key(read(aware), key_of), "true");
  EXPECT_EQ(key(read(aware + "--fp8-format hybrid"), key_of), "true");
  for (const std::string& own : {common, aware + "--fp8-format e4m3 --fp8-recipe mxfp8", aware + "--optimizer-cpu-offload"}) EXPECT_EQ(key(read(own), key_of), "-") << own;
  EXPECT_EQ(key(read(aware + "--main-params-dtype fp16"), "profile.master_parameter"), "fp16");
  EXPECT_EQ(key(read(aware + "--main-params-dtype fp16"), key_of), "-");
  EXPECT_EQ(fate(read(common + "--main-params-dtype fp16"), "main_params_dtype"), "not simulated");
}

TEST(Megatron, WeightedSquaredRelu) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --squared-relu --num-experts 8 --moe-grouped-gemm ";
  EXPECT_EQ(key(read(common + "--use-fused-weighted-squared-relu"), "profile.weighted_squared_relu"), "true");
  EXPECT_EQ(key(read(common), "profile.weighted_squared_relu"), "-");
}

TEST(Megatron, FullyShardedDataParallel) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --use-megatron-fsdp --use-distributed-optimizer ";
  const Imported i = read(common + "--data-parallel-sharding-strategy optim_grads_params --megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype bf16");
  EXPECT_EQ(key(i, "data_parallel.kind"), "megatron-fsdp");
  EXPECT_EQ(key(i, "data_parallel.gradient_dtype"), "fp32");
  EXPECT_EQ(key(i, "data_parallel.reduce_dtype"), "bf16");
  EXPECT_EQ(key(read(common + "--data-parallel-sharding-strategy optim_grads_params"), "data_parallel.gradient_dtype"), "bf16");
  EXPECT_EQ(key(read(common), "data_parallel.kind"), "ddp");   // no_shard
  EXPECT_EQ(key(read(common + "--data-parallel-sharding-strategy optim_grads"), "data_parallel.reshard_after_forward"), "false");
  EXPECT_TRUE(has(refused(common + "--data-parallel-sharding-strategy optim_params"), "no strategy of Megatron-FSDP"));
}

TEST(Megatron, InputsOfActivationsIn8Bits) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --swiglu ";
  EXPECT_EQ(key(read(common + "--activation-func-fp8-input-store"), "memory.fp8_activation_inputs"), "true");
  EXPECT_EQ(key(read(common), "memory.fp8_activation_inputs"), "-");
}

TEST(Megatron, AttentionAndOutputLayerIn8Bits) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --bf16 ";
  const std::string both = "--fp8-dot-product-attention --fp8-output-proj ";
  EXPECT_EQ(key(read(common + both + "--fp8-format e4m3 --fp8-recipe mxfp8"), "training.fp8_attention"), "true");
  EXPECT_EQ(key(read(common + both + "--fp8-format e4m3 --fp8-recipe mxfp8"), "training.fp8_head"), "true");
  for (const char* name : {"training.fp8_attention", "training.fp8_head"}) {
    EXPECT_EQ(key(read(common + both), name), "-") << name;   // without products of 8 bits
    EXPECT_EQ(key(read(common + "--fp8-format e4m3 --fp8-recipe mxfp8"), name), "-") << name;
  }
}

// megatron/core/transformer/transformer_config.py: cuda_graph_impl, cuda_graph_modules, and what it makes of their older names.
TEST(Megatron, CudaGraphsInEachSpelling) {
  const std::string dense = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --micro-batch-size 1 --global-batch-size 8 --vocab-size 4096 --bf16 ";
  const std::string experts = dense + "--num-experts 8 --moe-grouped-gemm ";
  const auto modules = [](const std::string& text) { return key(read(text), "training.cuda_graph_modules"); };
  EXPECT_EQ(modules(dense + "--cuda-graph-impl none --cuda-graph-modules attn"), "-");
  EXPECT_EQ(modules(dense + "--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp"), modules(dense + "--cuda-graph-impl local"));
  EXPECT_EQ(modules(dense + "--enable-cuda-graph"), modules(dense + "--external-cuda-graph --cuda-graph-scope full"));
  EXPECT_EQ(modules(dense + "--enable-cuda-graph"), "[attn, mlp]");
  EXPECT_EQ(modules(experts + "--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router"), modules(experts + "--cuda-graph-impl local --cuda-graph-scope attn moe_router"));
  for (const char* whole : {"--cuda-graph-impl full_iteration", "--cuda-graph-impl local --cuda-graph-scope full_iteration"}) {
    EXPECT_EQ(key(read(dense + whole), "training.cuda_graph"), "true") << whole;
    EXPECT_EQ(modules(dense + whole), "-") << whole;
  }
  EXPECT_EQ(read(dense + "--optimizer-cuda-graph").unsimulated.size(), 1u);
  EXPECT_EQ(module_names("[<CudaGraphModule.attn: 1>, <CudaGraphModule.moe_router: 4>]"), (std::vector<std::string>{"attn", "moe_router"}));
  EXPECT_TRUE(module_names("None").empty());
}

TEST(Megatron, KernelsThatTheProfileDoesNotHave) {
  const std::string dense = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --micro-batch-size 1 --global-batch-size 8 --vocab-size 4096 --bf16 ";
  const Imported fixed = read("export CUBLAS_WORKSPACE_CONFIG=:4096:8\npretrain_gpt.py " + dense + "--deterministic-mode --attention-backend flash");
  EXPECT_EQ(key(fixed, "profile.deterministic_attention"), "true");
  EXPECT_EQ(key(fixed, "profile.cublas_workspace"), "32 MiB");
  EXPECT_EQ(key(fixed, "profile.cudnn_attention_from"), "0");
  const Imported usual = read(dense + "--attention-backend auto");
  for (const char* name : {"profile.deterministic_attention", "profile.cublas_workspace", "profile.cudnn_attention_from", "profile.grouped_experts"}) EXPECT_EQ(key(usual, name), "-") << name;
  EXPECT_EQ(key(read(dense + "--num-experts 8"), "profile.grouped_experts"), "false");
  EXPECT_EQ(key(read(dense + "--num-experts 8 --moe-grouped-gemm"), "profile.grouped_experts"), "-");
  EXPECT_EQ(key(read(dense + "--fp8-format hybrid --fp8-recipe tensorwise"), "profile.current_scaling"), "true");
  EXPECT_EQ(key(read(dense + "--fp8-format hybrid --fp8-recipe delayed"), "profile.current_scaling"), "false");
  EXPECT_EQ(key(read(dense + "--fp8-format hybrid"), "profile.current_scaling"), "-");
}

TEST(Megatron, NoLayersOfABlockAreMadeAgain) {
  const std::string common = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --micro-batch-size 1 --global-batch-size 8 --vocab-size 4096 --bf16 --recompute-granularity full --recompute-num-layers 0 ";
  EXPECT_EQ(key(read(common + "--recompute-method block"), "memory.recompute"), "none");
  EXPECT_TRUE(has(refused(common + "--recompute-method uniform"), "0 layers under one checkpoint"));
}

TEST(CublasWorkspaceConfig, AddsUpPairsOfSizeAndCount) {
  EXPECT_EQ(cublas_workspace_of(":4096:8"), 32_MiB);
  EXPECT_EQ(cublas_workspace_of(":4096:2:16:8"), 8320_KiB);
  EXPECT_EQ(cublas_workspace_of(""), Bytes{0});
  EXPECT_EQ(cublas_workspace_of("none"), Bytes{0});
  EXPECT_EQ(cublas_workspace_of(":-4096:8"), Bytes{0});
}

TEST(Megatron, DeferredGradientsOfTheOutputLayer) {
  const std::string common = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --global-batch-size 8 --vocab-size 1000 --defer-embedding-wgrad-compute ";
  EXPECT_EQ(key(read(common + "--pipeline-model-parallel-size 2 --wgrad-deferral-limit 2"), "pipeline.deferred_head_gradients"), "2");
  EXPECT_EQ(key(read(common + "--pipeline-model-parallel-size 2"), "pipeline.deferred_head_gradients"), "0");
  EXPECT_TRUE(has(refused(common), "under pipeline stages only"));
}

TEST(Megatron, TheScenariosModelStandsAboveTheArguments) {
  Fragment stated;
  stated.set("model", "llama-3-8b", {});
  Context c = eight_gpus();
  c.scenario = stated.tree({});
  const Imported i = read("--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --global-batch-size 8", c);
  EXPECT_EQ(key(i, "model.layers"), "-");
  EXPECT_EQ(fate(i, "hidden_size"), "used");
}

// Whether the scenario states the model or the file names no sizes: what else the arguments say of it is known.
TEST(Megatron, ArgumentsOfAModelThatIsNotTheirs) {
  const std::string style = "--seq-length 128 --global-batch-size 8 --swiglu --hidden-dropout 0 --attention-dropout 0 --softmax-type learnable --activation-func-clamp-value 7 --mtp-num-layers 1 "
                            "--mtp-use-repeated-layer --group-query-attention --num-query-groups 2 --normalization RMSNorm";
  Fragment name, widths;
  name.set("model", "llama-3-8b", {});
  widths.set("model.layers", "2", {});
  widths.set("model.hidden", "64", {});
  for (const auto& [stated, sizes] : {std::pair{&name, "--num-layers 2 --hidden-size 64 --num-attention-heads 4 "}, {&name, ""}, {&widths, ""}}) {
    Context c = eight_gpus();
    c.scenario = stated->tree({});
    const Imported i = read(sizes + style, c);
    EXPECT_TRUE(i.report.not_understood.empty()) << i.report.not_understood.front().key;
    for (const char* argument : {"swiglu", "hidden_dropout", "attention_dropout", "softmax_type", "activation_func_clamp_value", "mtp_num_layers", "mtp_use_repeated_layer", "group_query_attention", "num_query_groups", "normalization"})
      EXPECT_EQ(fate(i, argument), "used") << argument;
    EXPECT_EQ(std::count_if(i.report.used.begin(), i.report.used.end(), [](const model::ImportNote& n) { return n.key == "group_query_attention"; }), 1);
  }
}

TEST(CommandLine, QuotesEqualsListsAndRepeats) {
  const config::Value v = parse_command_line("run --a=1 --b 'x y' --c 1 2 3 --d --a 2 -e 5 --f \"q r\"", "cmd");
  EXPECT_EQ(v.find("a")->text(), "2");
  EXPECT_EQ(v.find("b")->text(), "x y");
  EXPECT_EQ(v.find("c")->items().size(), 3u);
  EXPECT_EQ(v.find("d")->text(), "true");
  EXPECT_EQ(v.find("f")->text(), "q r");
}

TEST(CommandLine, WhatAScriptSaysIsNoArgument) {
  const config::Value v = parse_command_line("echo \"no --bf16 here\"\nrun --fp16 1\nif [ $X = 1 ]; then\n  printf \"%s\" --lr 2; fi\necho done; run --seed 3", "job.sh");
  EXPECT_EQ(v.find("bf16"), nullptr);
  EXPECT_EQ(v.find("lr"), nullptr);
  EXPECT_NE(v.find("fp16"), nullptr);
  ASSERT_NE(v.find("seed"), nullptr);   // behind the semicolon is another command
  EXPECT_EQ(v.find("seed")->text(), "3");
}

// What nobody sets is empty, as in ${CHUNKS:-2}; arguments are always there.
TEST(CommandLine, TestsOfVariablesThatNobodySets) {
  const std::string text = "if [ -z ${CHUNKS} ]; then\n  OPTION=\"\"\nelse\n  OPTION=\"--chunks ${CHUNKS}\"\nfi\nif [[ -n $1 ]]; then run --first 1; fi\nrun --bf16 $OPTION";
  const config::Value without = parse_command_line(text, "job.sh"), with = parse_command_line(text, "job.sh", {{"CHUNKS", "2"}});
  EXPECT_EQ(without.find("chunks"), nullptr);
  ASSERT_NE(with.find("chunks"), nullptr);
  EXPECT_EQ(with.find("chunks")->text(), "2");
  EXPECT_NE(without.find("first"), nullptr);
}

TEST(CommandLine, TextWhereAVariableHasAValue) {
  const std::string text = "run --stages 4 ${CHUNKS:+--chunks \"$CHUNKS\"} --bf16";
  const config::Value without = parse_command_line(text, "job.sh"), with = parse_command_line("CHUNKS=2\n" + text, "job.sh");
  ASSERT_NE(without.find("stages"), nullptr);
  EXPECT_EQ(without.find("stages")->text(), "4");
  EXPECT_EQ(without.find("chunks"), nullptr);
  ASSERT_NE(with.find("chunks"), nullptr);
  EXPECT_EQ(with.find("chunks")->text(), "2");
  EXPECT_NE(with.find("bf16"), nullptr);
}

// A `case` as in Megatron-LM's examples/mamba/train.sh; the choice may be the script's own, its user's, or nobody's.
TEST(CommandLine, CasesThatVariablesDecide) {
  const std::string text =
      "case \"${SIZE}\" in\n  \"small\")\n    HIDDEN=64\n    ;;\n  8[bB] | large)\n    HIDDEN=4096; MORE=\"--deep 2\" ;;\n  *)\n    echo \"unknown --size\"\n    exit 1\n    ;;\nesac\nrun --hidden $HIDDEN --bf16 $MORE\n";
  const auto at = [&](const std::string& size) { return parse_command_line(text, "job.sh", {{"SIZE", size}}); };
  EXPECT_EQ(at("small").find("hidden")->text(), "64");
  EXPECT_EQ(at("small").find("deep"), nullptr);
  EXPECT_EQ(at("8B").find("hidden")->text(), "4096");
  EXPECT_EQ(at("large").find("deep")->text(), "2");
  EXPECT_EQ(at("tiny").find("hidden")->text(), "$HIDDEN");
  EXPECT_EQ(parse_command_line("SIZE=small\n" + text, "job.sh").find("hidden")->text(), "64");
  const config::Value open = parse_command_line(text, "job.sh");   // all branches, the last of which sets it
  EXPECT_EQ(open.find("hidden")->text(), "4096");
  for (const config::Value& v : {at("small"), at("tiny"), open}) {
    EXPECT_NE(v.find("bf16"), nullptr);
    EXPECT_EQ(v.find("size"), nullptr);
  }
}

// The options that a script takes from its caller are patterns, no arguments of the job.
TEST(CommandLine, PatternsAreNoArguments) {
  const config::Value v = parse_command_line(
      "while [ $# -gt 0 ]; do\n  case $1 in\n    --fp16) HALF=1; shift ;;\n    (--tp) TP=$2; if [ $TP = 3 ]; then exit; fi; shift 2;;\n    esac\ndone\nrun --bf16 --case case in-text", "job.sh");
  EXPECT_EQ(v.find("fp16"), nullptr);
  EXPECT_EQ(v.find("tp"), nullptr);
  EXPECT_NE(v.find("bf16"), nullptr);
  EXPECT_EQ(v.find("case")->items().size(), 2u);
  EXPECT_NE(parse_command_line("case closed\nrun --bf16", "job.sh").find("bf16"), nullptr);   // no head of one
  EXPECT_NE(parse_command_line("case $x in a) run --bf16", "job.sh").find("bf16"), nullptr);   // nothing closes it
}

// Two dashes are arguments where a word begins with them.
TEST(CommandLine, DashesInsideAWordAreItsOwn) {
  const config::Value v = parse_command_line("P=\"M-M--M*-\"\nrun --pattern ${P} --bf16", "job.sh");
  EXPECT_EQ(v.find("pattern")->text(), "M-M--M*-");
  EXPECT_NE(v.find("bf16"), nullptr);
}

TEST(CommandLine, ArithmeticAndDefaults) {
  const config::Value v = parse_command_line("N=4\nM=${M:-3}\nrun --a $((N*M + 2)) --b $(( (N+M)/2 )) --c ${X:-\"9\"} --d $UNKNOWN --e $((1/0))\n", "cmd");
  EXPECT_EQ(v.find("a")->text(), "14");
  EXPECT_EQ(v.find("b")->text(), "3");
  EXPECT_EQ(v.find("c")->text(), "9");
  EXPECT_EQ(v.find("d")->text(), "$UNKNOWN");
  EXPECT_NE(v.find("e")->text(), "0");
}

const std::string kSmallGpt = "pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 50257";

// #SBATCH lines say how many nodes and processes take part where no launcher does; sbatch reads them up to the first command.
TEST(Megatron, BatchLinesSayHowManyNodesTakePart) {
  const std::string lines = "#!/bin/bash\n#SBATCH -J job --nodes=16   # 16 of them\n#SBATCH --ntasks-per-node 4\n#SBATCH --gres=gpu:a100:4\n";
  const std::string text = lines + "srun python " + kSmallGpt + "\n#SBATCH --nodes=2\n";
  const Imported i = import_text(text, "job.sh", "megatron", eight_gpus());
  EXPECT_EQ(key(i, "cluster.nodes"), "16");
  EXPECT_EQ(key(i, "cluster.gpus_per_node"), "4");
  EXPECT_EQ(find_dotted(i.keys, "cluster.nodes")->at().line, 2);
  expect_complete(i, parse_command_line(text, "job.sh"));
  Context c = eight_gpus();
  c.scenario = config::parse_document("cluster: {nodes: 2}", "s.yaml").root;
  const Imported own = import_text(text, "job.sh", "megatron", c);
  EXPECT_NE(note_of(own, "sbatch_nodes").find("cluster.nodes = 2 of the scenario"), std::string::npos);
}

TEST(Megatron, LaunchersArgumentsStandAboveBatchLines) {
  const std::string lines = "#SBATCH -N16\n#SBATCH --gpus-per-node=8\n";
  const auto nodes = [&](const std::string& launcher) { return key(import_text(lines + launcher + kSmallGpt, "job.sh", "megatron", eight_gpus()), "cluster.nodes"); };
  EXPECT_EQ(nodes("torchrun --nnodes 2 --nproc_per_node 8 "), "2");
  EXPECT_EQ(nodes("torchrun --nnodes $SLURM_JOB_NUM_NODES --nproc_per_node 8 "), "16");   // Slurm's own variable
  EXPECT_EQ(nodes("torchrun --nnodes $SOMETHING --nproc_per_node 8 "), "16");
}

TEST(Megatron, BatchVariables) {
  const config::Value v = parse_command_line("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nrun --a $SLURM_NNODES --b $((SLURM_NTASKS / 2)) --c ${SLURM_NTASKS_PER_NODE:-1}", "job.sh", {});
  EXPECT_EQ(v.find("a")->text(), "4");
  EXPECT_EQ(v.find("b")->text(), "16");
  EXPECT_EQ(v.find("c")->text(), "8");
  EXPECT_EQ(parse_command_line("#SBATCH --nodes=4\nrun --a $SLURM_NNODES", "job.sh", {{"SLURM_NNODES", "2"}}).find("a")->text(), "2");
}

// A script's arguments may stand in files that it sources, which are found beside it however their names are written.
class SourcedFiles : public testing::Test {
 protected:
  SourcedFiles() {
    std::filesystem::create_directories(folder_ / "models");
    write("models/m.sh", "N=8\nMODEL_ARGS=(\n  --num-layers $N --hidden-size 1024\n)\n. ./more.sh\n");
    write("more.sh", "--num-attention-heads 16\nsource models/m.sh\n");
  }
  ~SourcedFiles() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  config::Value read(const std::string& line) { return parse_command_line(line + "\nrun ${MODEL_ARGS[@]} --depth $N --bf16\n", (folder_ / "job.sh").string()); }
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "rehearse_sourced_files";
};

TEST_F(SourcedFiles, AreReadWhereTheyAreSourced) {
  for (const char* line : {"source models/m.sh", ". ./models/m.sh", "source \"$(dirname \"$0\")/models/m.sh\"",
                           "SCRIPT_DIR=\"$(cd -- \"$(dirname -- \"${BASH_SOURCE[0]}\")\" &>/dev/null && pwd)\"\nsource \"${SCRIPT_DIR}/models/m.sh\"", "P=$(realpath $0)\nsource $(dirname $P)/models/m.sh", ". `pwd`/models/m.sh"}) {
    const config::Value v = read(line);
    ASSERT_NE(v.find("num_layers"), nullptr) << line;
    EXPECT_EQ(v.find("num_layers")->text(), "8");
    EXPECT_EQ(v.find("depth")->text(), "8") << line;
    EXPECT_EQ(v.find("num_attention_heads")->text(), "16") << line;
    EXPECT_NE(v.find("bf16"), nullptr);
    EXPECT_TRUE(v.find("num_layers")->at().file.ends_with("models/m.sh"));
    EXPECT_EQ(v.find("num_layers")->at().line, 3);
  }
  EXPECT_EQ(read("source models/m.sh").find("source")->find("models/m.sh")->text(), "");   // its own cycle is cut
}

TEST_F(SourcedFiles, ThatCannotBeReadAreReported) {
  write("job.sh", "source ~/.bashrc\nsource gone.sh\nsource $WHERE/x.sh\nsource models/m.sh\n" + kSmallGpt);
  const Imported i = import_file(folder_ / "job.sh", "megatron", eight_gpus());
  EXPECT_EQ(fate(i, "source.gone.sh"), "not understood");
  EXPECT_EQ(fate(i, "source.$WHERE/x.sh"), "not understood");
  EXPECT_EQ(fate(i, "source.~/.bashrc"), "ignored");
  EXPECT_EQ(fate(i, "source.models/m.sh"), "used");
  EXPECT_NE(i.report.not_understood.front().note.find("sourced file not read: it is not there"), std::string::npos);
}

// Source: THUDM/slime, scripts/models/deepseek-v3.sh.
TEST(CommandLine, CountedLoopsFillArrays) {
  const std::string text = "N=\"${LAYERS:-5}\"\nK=2\narr=()\nfor ((i=0; i<N; i++)); do\n  if (( i < K )); then\n    arr+=(0)\n  else\n    arr+=(1)\n  fi\ndone\n\nprintf -v FREQ \"[%s]\" \"$(IFS=', '; echo \"${arr[*]}\")\"\nrun --freq \"$FREQ\" --bf16\n";
  EXPECT_EQ(parse_command_line(text, "job.sh").find("freq")->text(), "[0,0,1,1,1]");
  EXPECT_EQ(parse_command_line(text, "job.sh", {{"LAYERS", "3"}}).find("freq")->text(), "[0,0,1]");
  EXPECT_NE(parse_command_line(text, "job.sh").find("bf16"), nullptr);
  const auto freq = [](const std::string& head, const std::string& body) { return parse_command_line("a=()\nfor " + head + "; do " + body + "; done\nF=\"[$(IFS=,; echo \"${a[*]}\")]\"\nrun --freq $F", "job.sh").find("freq")->text(); };
  EXPECT_EQ(freq("((i = 1; i <= 6; i += 2))", "a+=($i)"), "[1,3,5]");
  EXPECT_EQ(freq("((i=0; i<4; ++i))", "for x in p q; do echo $x; done; [ $i -eq 2 ]; a+=(7)"), "[7,7,7,7]");   // a loop inside
  EXPECT_EQ(freq("((i=0; i<0; i++))", "a+=(1)"), "[]");
  EXPECT_NE(freq("((i=0; i<M; i++))", "a+=(1)"), "[1,1]");   // M is nobody's
}

TEST(Megatron, LayersThatStagesDoNotDivide) {
  const auto error = [](const std::string& more) { return error_of([&] { import_text("torchrun --nproc_per_node 8 --nnodes 1 " + kSmallGpt + more, "job.sh", "megatron", eight_gpus()); }); };
  EXPECT_NE(error(" --pipeline-model-parallel-size 3").find("8 layers do not divide over 3 stages"), std::string::npos);
  EXPECT_EQ(error(" --pipeline-model-parallel-size 4"), "");
  EXPECT_EQ(error(" --pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2"), "");
  EXPECT_NE(error(" --pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 22").find("hold 22 of 8 layers"), std::string::npos);
}

// Programs of examples/academic_paper_scripts/msdp and examples/inference, and Megatron-DeepSpeed's evaluate_zeroshot_gpt.sh.
TEST(Megatron, ProgramsThatAskAModelAreNoTraining) {
  const std::string arguments = kSmallGpt.substr(kSmallGpt.find(' '));
  for (const char* program : {"python -m torch.distributed.launch --nnodes 1 ./tasks/msdp/main.py", "torchrun tasks/main.py", "python -m examples.inference.offline_inference", "torchrun --nproc-per-node 8 \\\n  -m examples.inference.offline_inference", "python tools/prompt_model.py"}) {
    const Imported i = read(program + arguments);
    EXPECT_EQ(fate(i, "program"), "not simulated") << program;
  }
  EXPECT_EQ(fate(read("python main.py" + arguments), "program"), "-");
}

// Source of the defaults: NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes/common.py, _pretrain_common.
TEST(MegatronBridge, SectionsTellItsYaml) {
  const std::string text = "dataset:\n  seq_length: 4096\ntrain:\n  global_batch_size: 8\n  micro_batch_size: 1\nlogger:\n  log_interval: 10\nmodel:\n  tensor_model_parallel_size: 1\n";
  Context c = eight_gpus();
  c.scenario = config::parse_document("model: llama-3.2-1b", "s.yaml").root;
  const auto of = [&](const std::string& more) { return import_text(text + more, "bridge.yaml", "megatron", c); };
  const Imported i = of("");
  EXPECT_EQ(key(i, "training.framework"), "megatron-bridge");
  EXPECT_EQ(key(i, "training.precision"), "bf16");
  EXPECT_EQ(key(i, "data_parallel.kind"), "distributed-optimizer");
  EXPECT_EQ(key(i, "data_parallel.gradient_dtype"), "fp32");
  expect_complete(i, parse_megatron(text, "bridge.yaml"));
  EXPECT_EQ(key(of("mixed_precision: bf16_with_mxfp8_mixed\n"), "training.precision"), "mxfp8");
  EXPECT_EQ(key(of("ddp:\n  grad_reduce_in_fp32: false\n  use_distributed_optimizer: false\n"), "data_parallel.gradient_dtype"), "bf16");
  EXPECT_EQ(key(of("ddp:\n  use_distributed_optimizer: false\n"), "data_parallel.kind"), "ddp");
}

TEST(Megatron, FusionsThatAreSwitchedOffAreNotIgnored) {
  const Imported i = read(kSmallGpt + " --no-bias-gelu-fusion --no-masked-softmax-fusion");
  EXPECT_EQ(key(i, "profile.activation"), "native");
  EXPECT_EQ(fate(i, "no_masked_softmax_fusion"), "used");
  Context c = eight_gpus();
  c.scenario = config::parse_document("model: llama-2-7b", "s.yaml").root;
  const Imported given = import_text(kSmallGpt + " --attention-dropout 0.0 --swiglu", "job.sh", "megatron", c);
  for (const char* name : {"attention_dropout", "swiglu"}) EXPECT_EQ(fate(given, name), "used") << name;
}

}  // namespace
}  // namespace rehearse::importers::megatron_test
