// Small jobs for checks against formulas: sizes that every degree divides, and a framework without host time.
#pragma once

#include "sim/model/shapes.h"
#include "strategies/plan_writer.h"

namespace rehearse::scenario {

inline strategies::FrameworkProfile without_host_time(strategies::FrameworkProfile p) {
  for (Duration* d : {&p.kernel_host, &p.backward_kernel_host, &p.collective_host, &p.layer_host, &p.layer_backward_host, &p.step_host}) *d = Duration{};
  return p;
}

inline model::ModelDescription small_llama(std::int64_t layers) {
  model::Shapes s{.name = "small", .layers = layers, .hidden = 512, .heads = 8, .vocab = 4096};
  s.ffn_hidden = 1024;
  return model::make_from_shapes(s);
}

inline strategies::Strategy small_job(int data, int pipeline = 1, int micro_batches = 1) {
  strategies::Strategy s;
  s.training.sequence_length = 256;
  s.training.micro_batch_size = 1;
  s.training.global_batch_size = static_cast<std::int64_t>(data) * micro_batches;
  s.parallelism.degrees.data = data;
  s.parallelism.degrees.pipeline = pipeline;
  s.data_parallel.kind = data > 1 ? strategies::DataParallelKind::ddp : strategies::DataParallelKind::none;
  return s;
}

}  // namespace rehearse::scenario
