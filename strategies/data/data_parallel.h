// How data-parallel ranks keep parameters, gradients and optimizer states, and what they exchange: hooks that the stage
// writer calls around each unit. One file per family implements them; catalog.cpp announces them.
#pragma once

#include <optional>
#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "strategies/layer/tape_emitter.h"
#include "strategies/stage.h"

namespace rehearse::strategies {

/// A module's use in a micro-batch: which of a unit's weights are its own.
struct ModuleUse {
  std::size_t unit = 0;
  std::vector<int> weights;
};

class DataParallelWriter {
 public:
  explicit DataParallelWriter(Stage& stage) : stage_(stage) {}
  virtual ~DataParallelWriter() = default;

  /// Allocates what lives for the whole run.
  virtual void setup() = 0;
  /// What backward does with a unit's weight gradients, and their element sizes.
  virtual WeightGradient gradient_mode(bool first_micro_batch) const = 0;
  virtual std::int64_t gradient_element_bytes() const = 0;
  virtual std::int64_t main_gradient_element_bytes() const { return 4; }

  virtual void begin_step() {}
  /// Elements: parameters are gathered for each module that has a larger weight, not for whole units; -1: for units.
  virtual std::int64_t hooks_above() const { return -1; }
  /// The collective that gathers the unit's parameters once more between its recomputation and its backward; none: they stay.
  virtual std::optional<std::uint32_t> gather_again(const Unit&) const { return std::nullopt; }
  /// Where modules have hooks: all of one micro-batch's uses, in order; called once, before the first step.
  virtual void follow(std::vector<ModuleUse> uses) { (void)uses; }
  /// The next of them begins, or those of some weights end, `recorded` where it was a forward pass of which autograd saves what backward reads, and without `releases` it ends
  /// unnoticed; gradients of some weights of the unit are there.
  virtual void begin_module() {}
  virtual void end_module(const ModuleUse& use, bool recorded, bool releases) { (void)use, (void)recorded, (void)releases; }
  virtual void gradients_made(std::size_t unit, const std::vector<int>& weights, int micro_batch) { (void)unit, (void)weights, (void)micro_batch; }
  virtual void before_forward(std::size_t unit, int micro_batch) { (void)unit, (void)micro_batch; }
  virtual void after_forward(std::size_t unit, int micro_batch) { (void)unit, (void)micro_batch; }
  virtual void before_backward(std::size_t unit, int micro_batch) { (void)unit, (void)micro_batch; }
  /// Of a unit whose backward, or the part of it that makes weight gradients, begins.
  virtual void before_weight_gradients(std::size_t unit) { (void)unit; }
  /// Where backward is split: the parameters are not needed any more, the weight gradients are still to come.
  virtual void after_input_gradients(std::size_t unit, int micro_batch) { (void)unit, (void)micro_batch; }
  /// All gradients of the unit are made. `last`: the last micro-batch of the step for this unit's chunk.
  virtual void after_backward(std::size_t unit, int micro_batch, bool first, bool last) = 0;
  /// The last micro-batch has left units [first, last): one model chunk.
  virtual void end_chunk(std::size_t first, std::size_t last) { (void)first, (void)last; }
  /// The schedule says itself when a chunk's parameters are gathered, and when they go (torch's pipeline runtime).
  virtual void unshard(std::size_t first, std::size_t last) { (void)first, (void)last; }
  virtual void reshard(std::size_t first, std::size_t last) { (void)first, (void)last; }
  /// Finishes gradient reduction, clips, updates, gathers.
  virtual void end_step() = 0;
  /// After a step without gradients: drops what was gathered.
  virtual void end_evaluation() {}

 protected:
  /// What one rank's optimizer works on, in bytes.
  struct Share {
    std::int64_t elements = 0, stored = 0, gradients = 0, states = 0;
    std::int64_t later = 0;   // of `states`, what the first step makes
    std::int64_t to_disk = 0; // of `stored`, what goes back to disks when it is updated
    bool master = false;   // a whole fp32 copy is among the states
    bool sharded = false;  // a part of what each group shares
  };
  /// The trained parameters of this rank: all of them, or its part of what each group shares. `gradient`: bytes per element, as the optimizer reads them.
  Share share(bool sharded, std::int64_t gradient) const;
  /// Bytes of each sharing rank where whole tensors go, the largest first, to the rank that has least so far.
  /// Source: InternLM/InternEvo internlm/solver/optimizer/hybrid_zero_optim.py, _partition_param_list.
  std::vector<std::int64_t> shares_of_whole_tensors() const;
  /// Weights that different groups share, and their groups.
  static constexpr std::array<Part, 2> kParts{Part::dense, Part::experts};
  static plan::GroupAxis axis_of(Part part) { return part == Part::experts ? plan::GroupAxis::expert_data : plan::GroupAxis::data; }
  /// Where the pipeline holds the model twice: sums the local gradients over both copies of each stage, in place.
  void sum_copies(const Share& mine);
  /// Gradient norm over the local gradients and its clipping: kernels, scalar all-reduces, host synchronisation.
  /// `largest_double`: elements of the largest gradient that is copied to fp64 for its norm; 0: they are read as they are.
  void clip(const Share& mine, bool sharded, std::int64_t largest_double = 0);
  /// The norm of the stages so far comes from the stage before and goes on to the one after; nobody waits for all. What is
  /// sent back in the next warm-up to check it, and the step that is taken back if it was too large, are left out.
  /// Source: arXiv 2401.10241, section 4 (optimizer post-validation).
  void pass_norm_on(plan::BlockWriter& w);
  /// `made`: units whose states are made, if the first step does that; unset: all.
  void update(const Share& mine, const std::function<bool(const Unit&)>& made = {});
  /// Allocates a share's optimizer states, but for those that the first step makes.
  void keep_states(const Share& mine);
  /// Torch's optimizers make their states in their first step, weight by weight, where activations have been
  /// (torch/optim/adam.py, _init_group; Apex and Transformer Engine FusedAdam.step). DeepSpeed steps once on zeros when it
  /// sets up (stage_1_and_2.py and stage3.py, initialize_optimizer_states), XLA makes them with the parameters. What is offloaded
  /// or in unified memory is taken as there from the beginning.
  bool makes_states_late() const;
  void make_states(const Unit& unit) { make("optimizer states", states_, unit, plan::Phase::optimizer); }
  /// Parameters as modules make them, each weight a tensor, before they are copied into one buffer; begin: they are made,
  /// else they go. Experts' weights of one product are taken as one tensor.
  /// Source: megatron/core/distributed/param_and_grad_buffer.py, ParamAndGradBuffer.__init__ (old_param_data).
  void place_apart(bool begin);
  void foreach_temporaries(std::int64_t bytes, bool begin);
  /// zero_grad(set_to_none=True): what autograd made goes until the next backward.
  void free_gradients(plan::Phase phase = plan::Phase::optimizer);
  static void free_gradients_of(const Unit& unit, plan::BlockWriter& w);
  /// Which of a unit's weights have a gradient of their own; blocks are shared by units that agree in this.
  static std::string pattern_of(const Unit& unit);
  void orthogonalise(plan::BlockWriter& w);
  void sum_updates(plan::BlockWriter& w);
  std::int64_t owners() const;
  std::int64_t owners_of(const Weight& w) const;
  std::int64_t orthogonalised_elements() const;
  using UnitWeight = std::pair<const Unit*, const Weight*>;   // equal layers share their tape's weights
  std::vector<UnitWeight> own_matrices() const;
  // States in unified memory (update_by_weight.cpp)
  Weight own_part(const Weight& weight) const;
  std::int64_t paged_bytes(const Weight& weight) const;
  std::int64_t paged_bytes() const;
  void update_paged(std::int64_t gradient);
  // Weights that are updated one by one (update_by_weight.cpp)
  static std::string updated_weights(const Unit& u);
  void update_weights(const Unit& u, std::int64_t gradient, plan::BlockWriter& block);
  /// `gradient`: bytes of a gradient's element. Gradients of the unit go with the update.
  void update_in_backward(const Unit& u, std::int64_t gradient);
  void free_tied_gradients();
  // The optimizer on the host (optimizer_offload.cpp)
  bool offloads_parameters() const { return stage_.strategy.memory.offload.parameters != MemoryTier::device; }
  bool offloads_optimizer() const { return stage_.strategy.memory.offload.optimizer != MemoryTier::device; }
  /// So much of all that a share has; the remainder of it.
  static Share scaled(const Share& all, double ratio, bool remainder);
  /// The part of a share that is offloaded, or the one that stays.
  Share part_of(const Share& all, bool on_host) const;
  /// `pieces`: what is updated one after the other, as NVMe's buffers see it.
  void keep_on_host(const Share& all, const std::vector<Share>& pieces = {});
  static std::int64_t largest(const std::vector<Share>& pieces);
  /// Elements of gradients that are still in a buffer when backward ends. Buffers of a piece each are written as they get full
  /// (async_swapper.py, _make_swap_space), the last when the update begins (_flush_gradient_swapper).
  static std::int64_t left_in_buffer(std::int64_t elements, std::int64_t buffer) { return elements <= 0 ? 0 : elements - (elements - 1) / buffer * buffer; }
  /// Ranks of which one copies at a time, and what goes on when all have.
  struct Turns {
    int ranks = 1;
    bool holds_compute = false;   // else the stream that the gradients came from
    bool holds_host = false;      // the host reads of each parameter's gradient whether it overflows, behind the copies before it
  };
  /// Copies reduced gradients down once `after` has got there; `first`: nothing has been accumulated yet.
  /// `to_disk`: they go on to NVMe.
  void copy_gradients(plan::BlockWriter& w, std::int64_t bytes, std::int64_t bytes_down, plan::Stream after, bool first, const Turns& turns, bool to_disk = false);
  /// DeepSpeed looks at gradients before they go: overflow, norm in fp64, an fp32 copy.
  /// `largest`: elements of the largest of them.
  void inspect_gradients(plan::BlockWriter& w, std::int64_t elements, std::int64_t largest, plan::Stream on);
  /// Elements of the largest trained weight: of a unit, of all.
  static std::int64_t largest_weight(const Unit& unit);
  std::int64_t largest_weight() const;
  /// How updated parameters reach the GPU: as they are stored; cast by the CPU, from a buffer of their own; in fp32; in fp32 while later ones are
  /// updated; cast by the CPU, from pageable memory; cast, to wait in host memory; not at all, where the optimizer's parameters are the model's.
  enum class Return : std::uint8_t { stored, narrow, wide, under_update, cast, cast_and_stay, nothing };
  Return zero_return() const;
  /// In pieces, one after the other; what a copy brings back is waited for.
  void update_on_host(const std::vector<Share>& groups, Return back);
  struct HostTraffic {
    std::int64_t moved = 0, pinned = 0, fresh = 0;   // bytes through DRAM; those of the master copy and the gradient; bytes of new tensors
  };
  /// `width`: bytes per element of each of the optimizer's tensors.
  HostTraffic update_traffic(std::int64_t width) const;
  bool updates_shards(const Share& mine) const;
  std::int64_t host_width(const Share& mine) const;
  void split_tiles(const Share& all, std::vector<Share>& into) const;
  int cpu_threads() const;
  std::int64_t swap_buffers(std::size_t pieces) const;
  /// Bytes of optimizer state per local element (moments, master copy).
  std::int64_t state_bytes() const;
  std::int64_t moments() const;
  std::int64_t own_states(Part part) const;
  std::int64_t own_parameters(bool sharded) const;
  bool evaluates() const { return stage_.evaluates(); }
  std::int64_t stored_bytes() const { return bits(stage_.profile.stored_parameter) / 8; }
  void persistent(const std::string& name, std::int64_t bytes, plan::Category category);
  /// Tensors of each unit, and the frame they lie in, one unit after the other.
  struct UnitTensors {
    std::vector<std::vector<std::int64_t>> bytes;
    std::uint32_t frame = 0;
  };
  UnitTensors tensors_of(std::vector<std::vector<std::int64_t>> bytes);
  void make(const std::string& name, const UnitTensors& tensors, const Unit& unit, plan::Phase phase, plan::Category category = plan::Category::optimizer);
  void let_go(const std::string& name, const UnitTensors& tensors, const Unit& unit, plan::Phase phase);
  plan::PlanBuilder& builder() { return stage_.builder; }
  const FrameworkProfile& profile() const { return stage_.profile; }
  Duration host() const { return stage_.profile.kernel_host; }

  Stage& stage_;

 private:
  struct PartOfWeight {
    const Weight* weight = nullptr;
    std::int64_t elements = 0;   // of a parameter that this rank updates
    std::int64_t owners = 1;     // among which its states are dealt out
  };
  using PartsOfWeights = std::vector<std::vector<PartOfWeight>>;   // by unit
  bool cuts_buffer() const;
  PartsOfWeights own_parts(const Share& mine) const;
  std::vector<std::vector<std::int64_t>> late_states(const PartsOfWeights& parts) const;
  std::vector<std::vector<std::int64_t>> master_copies(const PartsOfWeights& parts) const;
  void of_unit(const std::string& what, const UnitTensors& tensors, const Unit& unit, plan::Phase phase, const std::function<void(plan::BlockWriter&, std::int64_t bytes)>& done);
  std::vector<std::int64_t> sizes_of(const Unit& unit) const;
  UnitTensors states_;   // that the first step makes
};

std::unique_ptr<DataParallelWriter> make_data_parallel(Stage& stage);

}  // namespace rehearse::strategies
