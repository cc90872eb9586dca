#include "sim/importers/torchtitan_keys.h"

namespace rehearse::importers {

namespace torchtitan_keys {

constexpr const char* kLogging = "logging and profiling";
constexpr const char* kData = "where tokens come from; data loading is taken to keep up";
constexpr const char* kSchedule = "values of the update, not work";
constexpr const char* kCheckpoint = "loading and saving checkpoints is not part of a step";
constexpr const char* kLaunch = "how processes find each other";

constexpr Ignored kIgnored[] = {
    {"parallelism.pipeline_parallel_schedule_csv", "no schedule of the user's own, or no stages"},
    {"job.*", kLogging},
    {"dump_folder", kLogging},
    {"hf_assets_path", kData},
    {"profiling.*", kLogging},
    {"profiler.*", kLogging},
    {"metrics.*", kLogging},
    {"debug.*", kLogging},
    {"memory_estimation.*", "an estimate beside the run"},
    {"lr_scheduler.*", kSchedule},
    {"optimizer.lr", kSchedule},
    {"optimizer.beta*", kSchedule},
    {"optimizer.eps", kSchedule},
    {"optimizer.weight_decay", kSchedule},
    {"optimizer.optimizer_factory_kwargs_by_name.*", kSchedule},
    {"checkpoint.*", kCheckpoint},
    {"comm.*", kLaunch},
    {"validation.*", "validation is not part of a step"},
    {"validator*", "validation is not part of a step"},
    {"dataloader.*", kData},
    {"tokenizer.*", kData},
    {"model.hf_assets_path", kData},
    {"model.tokenizer_path", kData},
    {"model.print_after_conversion", kLogging},
    {"model_spec.model.*", "the flavor names the model"},
    {"training.dataset", kData},
    {"training.dataset_path", kData},
    {"training.dataloader.*", kData},
    {"training.checkpoint_*", kCheckpoint},
    {"training.steps", "how long training goes on"},
    {"training.gc_freq", "when Python collects its garbage"},
    {"training.gc_debug", "when Python collects its garbage"},
    {"training.seed", "initial values"},
    {"training.deterministic", "deterministic kernels are taken to be as fast"},
    {"training.warmup_steps", kSchedule},
    {"parallelism.context_parallel_load_balancer", "causal work is balanced over the ranks"},
    {"parallelism.context_parallel_ptrr_mask_key", "causal work is balanced over the ranks"},
    {"parallelism.pipeline_parallel_expert_parallel_overlap", "an option of DualPipeV with experts"},
    {"parallelism.spmd_backend", "how tensors are described, not how they are cut"},
    {"parallelism.pipeline_parallel_split_points", "an old way to name the stages; layers are spread evenly"},
    {"experimental.*", "modules of the user's own"},
    {"activation_checkpoint.preserve_rng_state", "a copy of the random state"},
    {"activation_checkpoint.determinism_check", "a check"},
    {"activation_checkpoint.debug", kLogging},
    {"activation_checkpoint.visualize_memory_budget_pareto", kLogging},
    {"activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "the router's small products"},
    {"activation_checkpoint.force_recompute_mm_shapes_by_fqns", "the router's small products"},
    {"activation_checkpoint.selective_ac_option", "read with mode selective"},
    {"activation_checkpoint.memory_budget", "read with mode memory_budget"},
    {"compile.backend", "inductor"},
    {"float8.filter_fqns", "which linear layers stay in 16 bit: the head, in the simulation"},
    {"quantize.linear.float8.filter_fqns", "which linear layers stay in 16 bit: the head, in the simulation"},
    {"quantize.linear.mx.*", "options of MX formats"},
    {"quantize.grouped_mm.*", "options of quantised experts"},
    {"float8.*", "options of float8, which is off unless it is a converter"},
    {"mx.*", "options of MX formats"},
    {"fault_tolerance.*", "options of a feature that is off"},
    {"override.*", "replaced implementations"},
    {"loss.*", "a kind of cross-entropy; the framework profile states which"},
};

constexpr Unsimulated kUnsimulated[] = {
    {"parallelism.disable_loss_parallel", "false", "a loss that is not split over tensor-parallel ranks"},
    {"parallelism.enable_fsdp_symm_mem", "false", "symmetric memory for FSDP"},
    {"parallelism.module_fqns_per_model_part", "[]", "stages named module by module"},
    {"quantize.linear.float8.emulate", "false", "emulated 8-bit products"},
    {"optimizer.implementation", "fused|fused_opt_states_bf16|foreach", "an optimizer that goes through its parameters one by one"},
    {"optimizer.early_step_in_backward", "false", "the optimizer step inside backward"},
    {"fault_tolerance.enable", "false", "fault-tolerant replicas"},
};

}  // namespace torchtitan_keys

Vocabulary torchtitan_vocabulary() { return {torchtitan_keys::kIgnored, torchtitan_keys::kUnsimulated, false, "torchtitan"}; }

}  // namespace rehearse::importers
