#include "strategies/stage_writer.h"

#include <algorithm>
#include <array>

#include <fmt/core.h>

#include "sim/core/contract.h"
#include "strategies/data/data_parallel.h"
#include "strategies/layer/blocks.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/stage_passes.h"

namespace rehearse::strategies {

using plan::Phase;
using plan::Stream;

namespace {

constexpr int kBoth = plan::kAfterCompute | plan::kComputeWaits;

LowerContext context_of(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, const GroupSizes& sizes) {
  LowerContext context = make_context(model, strategy, profile, builder);
  context.expert_rank = sizes.expert_rank;
  context.expert_inside = sizes.expert_inside;
  return context;
}

/// The largest of what is written into Megatron's global memory buffer: scores of its own attention, inputs that its own
/// linear layers gather, tokens that experts gather.
std::int64_t memory_buffer(const LowerContext& c) {
  if (!c.profile.memory_buffer) return 0;
  const std::int64_t row = c.model.hidden * c.element();
  std::int64_t bytes = 0;
  if (!c.profile.transformer_engine && c.attention == "unfused") bytes = c.batch * (c.model.heads / c.tensor) * c.sequence * c.sequence * c.element();
  if (!c.profile.transformer_engine && c.sequence_parallel) bytes = std::max(bytes, c.tokens * row);
  if (c.model.experts.experts > 0 && c.strategy.experts.dispatcher.value_or(c.profile.dispatcher) == Dispatcher::all_gather) {
    const std::int64_t ranks = static_cast<std::int64_t>(c.strategy.parallelism.degrees.expert) * c.strategy.parallelism.degrees.expert_tensor;
    if (ranks > 1) bytes = std::max(bytes, c.stream_tokens() * ranks * row);
  }
  return bytes;
}

}  // namespace

struct StageWriter::Impl {
  Impl(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, plan::RankClass& rank_class, GroupSizes sizes,
       const std::vector<ChunkContents>& contents, const std::vector<ChunkNeighbours>& neighbours)
      : context(context_of(model, strategy, profile, builder, sizes)),
        stage(strategy, profile, builder, rank_class, sizes, model.layer_count()),
        chunks(stage_chunks(context, stage, contents, neighbours)),
        data(make_data_parallel(stage)),
        frames(stage.frames),
        messages(stage, chunks, frames),
        passes(stage, chunks, *data, frames, messages, context.stream_tokens() * model.hidden * context.stream_element()) {
    if (strategy.memory.sequence_chunk > 0) rank_class.host.pinned += chunked_host_bytes(context, model.layer_count());
  }

  void sum_over_tensor_group();
  void sum_tied_embeddings();
  void update_metrics();

  LowerContext context;
  Stage stage;
  StageChunks chunks;
  std::unique_ptr<DataParallelWriter> data;
  StageFrames frames;
  StageMessages messages;
  StagePasses passes;
};

/// Gradients of weights that every tensor rank holds (norms, routers, latent projections) are partial sums over the tensor
/// group (Megatron finalize_model_grads).
void StageWriter::Impl::sum_over_tensor_group() {
  if (!context.sequence_parallel) return;
  std::int64_t elements = 0;
  for (const Unit& u : stage.units)
    for (const Weight& w : u.tape->weights)
      if (w.replicated_over_tensor && w.trainable) elements += w.elements;
  if (elements == 0) return;
  stage.call("sum norm gradients over the tensor group", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
    w.collective(stage.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::tensor, Bytes{elements * data->main_gradient_element_bytes()}, "norm gradients"}), Stream::tensor, kBoth,
                 stage.profile.collective_host);
  });
}

/// Tied embeddings on different stages: both copies sum their gradients.
void StageWriter::Impl::sum_tied_embeddings() {
  const Degrees& d = stage.strategy.parallelism.degrees;
  if (!context.model.tied_embeddings || d.pipeline == 1 || chunks.tied) return;
  // Where the head has a stage before the last, the last takes its part: groups are laid out over first and last stages.
  const bool outer = std::any_of(chunks.chunks.begin(), chunks.chunks.end(), [](const StageChunk& c) { return c.neighbours.begins() || c.neighbours.ends(); });
  const bool frozen = std::any_of(stage.units.begin(), stage.units.end(), [](const Unit& u) {
    return std::any_of(u.tape->weights.begin(), u.tape->weights.end(), [](const Weight& w) { return !w.trainable && (w.name == "word_embeddings.weight" || w.name == "lm_head.weight"); });
  });
  if (!outer || frozen) return;
  const std::int64_t elements = padded_vocabulary(context) / (context.profile.whole_embedding ? 1 : d.tensor) * context.model.hidden;
  stage.call("sum tied embedding gradients", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
    w.collective(stage.builder.collective({CollectiveKind::all_reduce, plan::GroupAxis::embedding, Bytes{elements * data->main_gradient_element_bytes()}, "tied embedding gradients"}),
                 Stream::data_reduce, kBoth, stage.profile.collective_host);
  });
}

/// torch.nn.CrossEntropyLoss once for each metric, under autocast and without a graph, on logits that the loop still has. Source: mosaicml/composer
/// v0.13.4 and v0.16.4, trainer/trainer.py (_train_microbatch, _eval_train_metrics), metrics/nlp.py (LanguageCrossEntropy, LanguagePerplexity).
void StageWriter::Impl::update_metrics() {
  if (stage.profile.training_metrics == 0 || stage.sizes.pipeline > 1) return;
  stage.call("update training metrics", Phase::backward, nullptr, [&](plan::BlockWriter& w) {
    constexpr std::uint32_t kLogits = Stage::kPersistentSlots - 33, kLogSoftmax = Stage::kPersistentSlots - 34;
    const std::int64_t elements = context.tokens * (padded_vocabulary(context) / context.tensor), wide = elements * 4, row = context.tokens * 4;
    const auto kernel = [&](model::KernelKind kind, std::int64_t read, std::int64_t written, const char* name) {
      w.kernel(stage.builder.kernel({.kind = kind, .bytes_read = read, .bytes_written = written, .elements = 2 * elements, .name = name}), stage.profile.kernel_host);
    };
    for (int metric = 0; metric < stage.profile.training_metrics; ++metric) {
      if (context.element() < 4) {
        w.alloc(kLogits, wide, plan::Category::temporary);
        kernel(model::KernelKind::converting, elements * context.element(), wide, "cast logits");
      }
      w.alloc(kLogSoftmax, wide, plan::Category::temporary);
      kernel(model::KernelKind::elementwise, 3 * wide, wide, "log softmax of a metric");   // Operators::log_softmax
      kernel(model::KernelKind::elementwise, row, row, "nll loss of a metric");
      w.free(kLogSoftmax);
      if (context.element() < 4) w.free(kLogits);
    }
  });
}

StageWriter::StageWriter(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder, plan::RankClass& rank_class,
                         GroupSizes sizes, const std::vector<ChunkContents>& chunks, const std::vector<ChunkNeighbours>& neighbours)
    : impl_(std::make_unique<Impl>(model, strategy, profile, builder, rank_class, sizes, chunks, neighbours)) {}

StageWriter::~StageWriter() = default;

namespace {

/// What torch.distributed.pipelining keeps for messages beyond those that are in use: a buffer for each micro-batch and side that something comes
/// from (stage.py, _RecvInfo), less as many as are in hand at once, which come and go with their messages here.
std::int64_t spare_receive_buffers(const std::vector<StageChunk>& chunks, const std::vector<Action>& actions) {
  struct Side {
    std::int64_t received = 0, held = 0, most = 0;
  };
  std::vector<std::array<Side, 2>> sides(chunks.size());   // from below, from above
  const auto receive = [&](int chunk, int side) {
    Side& s = sides[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(side)];
    s.received++;
    s.most = std::max(s.most, ++s.held);
  };
  for (const Action& a : actions) {
    if (a.kind == ActionKind::recv_forward) receive(a.chunk, 0);
    if (a.kind == ActionKind::recv_backward) receive(a.chunk, 1);
    const int done = a.kind == ActionKind::overlapped ? a.under_chunk : a.kind == ActionKind::backward || a.kind == ActionKind::backward_input ? a.chunk : -1;
    if (done < 0) continue;
    for (Side& s : sides[static_cast<std::size_t>(done)]) s.held = std::max<std::int64_t>(0, s.held - 1);
  }
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkNeighbours& n = chunks[i].neighbours;
    if (n.previous >= 0) bytes += chunks[i].bytes_in * (sides[i][0].received - sides[i][0].most);
    if (n.next >= 0) bytes += chunks[i].bytes_out * (sides[i][1].received - sides[i][1].most);
  }
  return bytes;
}

}  // namespace

void StageWriter::setup(const std::vector<Action>& actions) {
  const LowerContext& context = impl_->context;
  Stage& stage = impl_->stage;
  stage.in_setup = true;
  impl_->data->setup();
  // Made at the first matrix product of each thread and never freed (PyTorch, CublasHandlePool): the forward's before anything
  // large has been freed, that of autograd's thread by its own first product (tape_emitter.cpp), in whatever the loss left free.
  EXPECTS(stage.persistent == 0, "the persistent frame is the program's first");
  stage.call("allocate workspaces", Phase::setup, nullptr, [&](plan::BlockWriter& w) {
    for (std::size_t i = 0; i < stage.profile.workspaces.size(); ++i)
      if (i != 1) w.alloc(stage.persistent_slot(), stage.profile.workspaces[i].value, plan::Category::workspace);
    if (const std::int64_t bytes = memory_buffer(context); bytes > 0) w.alloc(stage.persistent_slot(), bytes, plan::Category::workspace);
    if (stage.profile.gathers_into_buffers && context.sequence_parallel)
      for (int i = 0; i < 2; ++i) w.alloc(stage.persistent_slot(), context.tokens * context.model.hidden * context.element(), plan::Category::workspace);
  });
  if (const std::int64_t bytes = stage.profile.receives_into_buffers ? spare_receive_buffers(impl_->chunks.chunks, actions) : 0; bytes > 0)
    stage.call("allocate receive buffers", Phase::setup, nullptr, [&](plan::BlockWriter& w) { w.alloc(stage.persistent_slot(), bytes, plan::Category::communication); });
  impl_->passes.setup();
  stage.in_setup = false;
}

namespace {

/// A collection's share of a step, on average: all ranks collect after the same steps, when the loss has been read.
Duration collection(const Stage& stage) {
  const std::int64_t interval = stage.strategy.training.collection_interval;
  return interval > 0 ? Duration{stage.profile.collection_host.count() / interval} : Duration{};
}

}  // namespace

void StageWriter::begin_step() {
  Stage& stage = impl_->stage;
  stage.call("step begins", Phase::input, nullptr, [&](plan::BlockWriter& w) {
    if (stage.profile.waits_after_step) w.host_sync();   // for the step before
    w.host(stage.profile.step_host + collection(stage));
    const std::int64_t ids = impl_->context.tokens * 8 * 2;
    w.kernel(stage.builder.kernel({.kind = model::KernelKind::elementwise, .bytes_read = ids, .bytes_written = ids, .name = "input copy"}), stage.profile.kernel_host);
  });
  impl_->passes.begin_step();
  impl_->data->begin_step();
}

void StageWriter::forward(int chunk, int micro_batch) {
  if (impl_->stage.profile.blocking_input && impl_->stage.sizes.pipeline == 1) impl_->stage.call("wait for input", Phase::input, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
  impl_->passes.forward(chunk, micro_batch);
}
void StageWriter::backward(int chunk, int micro_batch) {
  impl_->passes.backward(chunk, micro_batch);
  impl_->update_metrics();
  if (impl_->stage.profile.reads_loss && impl_->stage.sizes.pipeline == 1) impl_->stage.call("read loss", Phase::backward, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}
void StageWriter::backward_input(int chunk, int micro_batch) { impl_->passes.backward_input(chunk, micro_batch); }
void StageWriter::backward_weight(int chunk, int micro_batch) { impl_->passes.backward_weight(chunk, micro_batch); }
void StageWriter::overlapped(int chunk, int micro_batch, int under_chunk, int under_micro_batch) { impl_->passes.overlapped(chunk, micro_batch, under_chunk, under_micro_batch); }

void StageWriter::message(const Action& action, bool batched) { impl_->messages.issue(action, batched); }
void StageWriter::wait_for(const Action& action) { impl_->messages.wait_for(action); }
void StageWriter::synchronise() {
  impl_->stage.call("synchronise after messages", Phase::communication, nullptr, [](plan::BlockWriter& w) { w.host_sync(); });
}

void StageWriter::sleep(Duration time) {
  impl_->stage.call(fmt::format("look for messages {}", time.count()), Phase::communication, nullptr, [&](plan::BlockWriter& w) {
    w.host(time);
    w.host_sync();   // the last look sees the device there
  });
}

void StageWriter::unshard(int chunk) { impl_->data->unshard(impl_->chunks[chunk].first, impl_->chunks[chunk].last); }
void StageWriter::reshard(int chunk) { impl_->data->reshard(impl_->chunks[chunk].first, impl_->chunks[chunk].last); }
void StageWriter::reduce_gradient(int chunk) { impl_->data->end_chunk(impl_->chunks[chunk].first, impl_->chunks[chunk].last); }

Duration StageWriter::launch_time(int chunk) { return impl_->passes.launch_time(chunk); }
void StageWriter::wait_for_thread(Duration busy) {
  impl_->stage.call("wait for the thread with the loss", Phase::forward, nullptr, [&](plan::BlockWriter& w) { w.host(busy); });
}

void StageWriter::end_step() {
  if (impl_->stage.evaluates()) return impl_->data->end_evaluation();
  impl_->passes.make_deferred_gradients();
  impl_->sum_over_tensor_group();
  impl_->sum_tied_embeddings();
  impl_->data->end_step();
  impl_->passes.end_step();
}

void StageWriter::finish() {
  EXPECTS(impl_->stage.evaluates() || impl_->frames.empty(), "a micro-batch has not gone through its backward");
  impl_->stage.rank_class.program.slots = impl_->stage.frames.total();
}

}  // namespace rehearse::strategies
