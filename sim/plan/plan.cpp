#include "sim/plan/plan.h"

namespace rehearse::plan {

std::string_view name_of(Stream s) {
  switch (s) {
    case Stream::compute: return "compute";
    case Stream::tensor: return "tensor collectives";
    case Stream::context: return "context collectives";
    case Stream::expert: return "expert collectives";
    case Stream::data_gather: return "parameter gather";
    case Stream::data_reduce: return "gradient reduction";
    case Stream::data_shard: return "shard collectives";
    case Stream::data_replicate: return "replica reduction";
    case Stream::send_forward: return "send activations";
    case Stream::recv_forward: return "receive activations";
    case Stream::send_backward: return "send gradients";
    case Stream::recv_backward: return "receive gradients";
    case Stream::to_device: return "host to device";
    case Stream::to_host: return "device to host";
    case Stream::stash: return "activation pages";
    case Stream::count_: break;
  }
  return "?";
}

std::string_view name_of(Category c) {
  switch (c) {
    case Category::parameter: return "parameters";
    case Category::gradient: return "gradients";
    case Category::optimizer: return "optimizer";
    case Category::activation: return "activations";
    case Category::temporary: return "temporaries";
    case Category::communication: return "communication";
    case Category::workspace: return "workspace";
    case Category::count_: break;
  }
  return "?";
}

std::string_view name_of(GroupAxis a) {
  switch (a) {
    case GroupAxis::tensor: return "tensor";
    case GroupAxis::context: return "context";
    case GroupAxis::context_ulysses: return "context_ulysses";
    case GroupAxis::context_ring: return "context_ring";
    case GroupAxis::data: return "data";
    case GroupAxis::data_replicate: return "data_replicate";
    case GroupAxis::data_context: return "data_context";
    case GroupAxis::data_secondary: return "data_secondary";
    case GroupAxis::data_inside: return "data_inside";
    case GroupAxis::data_across: return "data_across";
    case GroupAxis::pipeline: return "pipeline";
    case GroupAxis::model: return "model";
    case GroupAxis::expert: return "expert";
    case GroupAxis::expert_inside: return "expert_inside";
    case GroupAxis::expert_across: return "expert_across";
    case GroupAxis::expert_tensor: return "expert_tensor";
    case GroupAxis::expert_data: return "expert_data";
    case GroupAxis::embedding: return "embedding";
    case GroupAxis::mirror: return "mirror";
    case GroupAxis::world: return "world";
    case GroupAxis::count_: break;
  }
  return "?";
}

std::string_view title_of(const Block& block) {
  const std::string_view name = block.name;
  for (std::size_t blank = name.find(' '); blank != std::string_view::npos; blank = name.find(' ', blank + 1))
    if (blank + 1 < name.size() && name[blank + 1] >= '0' && name[blank + 1] <= '9') return name.substr(0, blank);
  return name;
}

std::string_view name_of(Phase p) {
  switch (p) {
    case Phase::setup: return "setup";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::weight_gradient: return "weight gradients";
    case Phase::recompute: return "recompute";
    case Phase::gradient_reduction: return "gradient reduction";
    case Phase::parameter_gather: return "parameter gather";
    case Phase::optimizer: return "optimizer";
    case Phase::communication: return "communication";
    case Phase::input: return "input";
    case Phase::count_: break;
  }
  return "?";
}

std::int64_t Plan::instructions_per_step() const {
  std::int64_t n = 0;
  for (const RankClass& c : classes)
    for (const Call& call : c.program.step)
      n += static_cast<std::int64_t>(blocks[call.block].timing.size() + blocks[call.block].memory.size());
  return n;
}

}  // namespace rehearse::plan
