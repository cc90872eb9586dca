// A linear layer's forward and backward: the three products and what travels around and under them.
#include "strategies/layer/linear_layer.h"

#include <utility>

namespace rehearse::strategies {

using model::GemmRole;

namespace {

constexpr int kBoth = plan::kAfterCompute | plan::kComputeWaits;

void append(std::vector<Item>& list, const std::vector<Item>& items) { list.insert(list.end(), items.begin(), items.end()); }

std::vector<Item> for_input(std::vector<Item> items) {
  for (Item& i : items) i.for_input = true;
  return items;
}

std::vector<Item> for_weights(std::vector<Item> items) {
  for (Item& i : items) i.for_weights = true;
  return items;
}

}  // namespace

TensorId LinearLayer::write() {
  const TensorId y = tape_.tensor(name_, out_rows_ * n_ * c_.element());
  const int weight = tape_.weight(matrix());
  node_ = {.name = name_, .inputs = {x_}, .outputs = {y}};
  keep_operands();
  if (autocast_copies_weight()) copy_weight();
  if (bias_ && casts_bias()) node_.forward.push_back(op_.convert("cast bias", n_ * 4, n_ * 2));
  const Casts casts = this->casts();
  node_.copies_for_weights = op_.columns_in_backward() && trained_ && !scatters_;
  forward(casts);
  backward(casts, weight);
  tape_.nodes.push_back(std::move(node_));
  return y;
}

Weight LinearLayer::matrix() const {
  Weight matrix = op_.weight(name_ + ".weight", k_ * n_);
  matrix.replicated_over_tensor = !sharded_;
  matrix.columns = k_;
  matrix.gradient_widened = autocasts_weight();
  if (quantised_) {
    matrix.packed_bytes = quantised_bytes(k_ * n_, c_.strategy.tuning);
    matrix.packed_states = quantisation_states(k_ * n_, c_.strategy.tuning);
    matrix.wide_bytes = 0;
  }
  op_.cast_by_engine(matrix);
  if (gathered_narrow_) matrix.travel_bytes = k_ * n_;
  return matrix;
}

/// An intermediate of forward that backward reads.
void LinearLayer::keep(const std::string& what, std::int64_t bytes) {
  node_.intermediates.push_back(tape_.tensor(name_ + " " + what, bytes, false));
  node_.saved.push_back(node_.intermediates.back());
}

void LinearLayer::keep_operands() {
  const bool nvfp4 = c_.gemm == DType::nvfp4;
  if (const TensorId kept = tape_.tensors[static_cast<std::size_t>(x_)].kept_as; trained_ && kept != kNoTensor) {
    node_.saved.push_back(kept);
    node_.weight_operand = kept;
  } else if (keeps_gathered_) {
    keep("gathered input", input_bytes_);
  } else if (gathers_ && c_.reads_gathered) {   // the other layer keeps it
  } else if (trained_ && is_torchao(DType::nvfp4)) {
    // torchao keeps both operands as backward multiplies them: quantised along the other direction (nvfp4_linear.py, save_for_backward).
    for (const auto& [what, elements] : {std::pair("input", own_rows_ * k_), std::pair("weight", k_ * n_)}) keep(std::string("quantised ") + what, elements / 2 + elements / 16);
  } else if (trained_ && low_precision_ && c_.profile.transformer_engine) {
    // Transformer Engine keeps the operand as it was multiplied: cast, with its scales (module/linear.py, layernorm_linear.py: inputmat).
    const std::int64_t elements = own_rows_ * k_, scales = block_scaled_ ? elements / (nvfp4 ? 16 : 32) : op_.columns_in_backward() ? Operators::block_scaled(elements) - elements : 0;
    keep("cast input", narrow(elements) + scales);
    node_.weight_operand = node_.saved.back();
  } else if (trained_) {
    node_.saved.push_back(x_);
  } else if (nf4_ && c_.profile.keeps_quantised_inputs) {  // bitsandbytes autograd/_functions.py, MatMul4Bit: ctx.tensors = (A, B)
    node_.attributes.push_back(x_);
  }
  if (gptq_) {  // a product of plain tensors: autograd keeps the weight for the input's gradient
    node_.intermediates.push_back(tape_.tensor(name_ + " whole weight", weight_bytes_, false));
    node_.saved_for_input.push_back(node_.intermediates.back());
  }
}

/// An fp32 weight in a 16-bit product.
bool LinearLayer::autocasts_weight() const {
  const DataParallelKind kind = c_.strategy.data_parallel.kind;
  return !quantised_ && c_.profile.autocast && c_.profile.stored_parameter == DType::fp32 && c_.element() == 2 && kind != DataParallelKind::fsdp1 && kind != DataParallelKind::fsdp2;
}

/// Compiled kernels cast as they read and write.
bool LinearLayer::casts_bias() const { return autocasts_weight() && !c_.profile.compiled; }

/// torchao's Float8Linear casts its input under autocast; the weight goes from fp32 to 8 bits (float8/float8_linear.py, forward).
bool LinearLayer::autocast_copies_weight() const { return autocasts_weight() && !(low_precision_ && !c_.profile.transformer_engine); }

/// Autocast copies the fp32 weight; the copy is what backward reads.
void LinearLayer::copy_weight() {
  keep("weight copy", k_ * n_ * 2);
  node_.forward.push_back(op_.convert("cast weight", k_ * n_ * 4, k_ * n_ * 2));
}

/// All ranks' rows, one rank after the other; of several samples they are copied into order (PyTorch 2.13 _utils.py, _maybe_view_chunk_cat).
void LinearLayer::all_gather(std::vector<Item>& list, const std::string& what, std::int64_t bytes) const {
  const bool copies = reorders_ && c_.batch > 1;
  if (copies) list.push_back(op_.alloc(unordered, bytes));
  list.push_back(op_.collective(CollectiveKind::all_gather, name_ + " gather " + what, bytes, kBoth));
  if (copies) append(list, {op_.kernel(name_ + " order " + what, bytes, bytes, model::KernelKind::strided), op_.free(unordered)});
}

/// The sequence's pieces are put one after the other first (_utils.py, _chunk_or_narrow_cat).
void LinearLayer::reduce_scatter(std::vector<Item>& list, const std::string& what, std::int64_t bytes, int sync) const {
  if (reorders_) append(list, {op_.alloc(unordered, bytes), op_.kernel(name_ + " order " + what, bytes, bytes, model::KernelKind::strided)});
  list.push_back(op_.collective(CollectiveKind::reduce_scatter, name_ + " scatter " + what, bytes, sync));
  if (reorders_) list.push_back(op_.free(unordered));
}

// Products -----------------------------------------------------------------------------------------------------------

Item LinearLayer::whole(const Gemm& gemm) const { return op_.gemm(gemm.name, gemm.role, gemm.rows, gemm.columns, gemm.depth, c_.activation, false); }

/// One of as many as there are ranks, dealt out to several streams (Transformer Engine comm_gemm_overlap.cpp: stream_compute[i % stream_compute.size()];
/// PyTorch _symmetric_memory: a backend stream beside the current one).
Item LinearLayer::piece(const Gemm& gemm, std::int64_t i) const { return op_.gemm(gemm.name, gemm.role, gemm.rows / t_, gemm.columns, gemm.depth, c_.activation, false, i + 1 < t_); }

/// Each rank's rows are multiplied while the next rank's travel round the ring.
void LinearLayer::gathered(std::vector<Item>& list, const Gemm& gemm, const std::string& travels, std::int64_t bytes) const {
  for (std::int64_t i = 0; i < t_; ++i) {
    if (i + 1 < t_) list.push_back(op_.collective(CollectiveKind::send_recv, travels, bytes / t_, i == 0 ? plan::kAfterCompute : 0));
    list.push_back(piece(gemm, i));
    if (i + 1 < t_) list.push_back(op_.wait(plan::Stream::tensor));
  }
}

/// Each rank's rows travel while the next rank's are multiplied; the own rows come last and are summed with what arrived.
void LinearLayer::scattered(std::vector<Item>& list, const Gemm& gemm, const std::string& travels, std::int64_t bytes) const {
  for (std::int64_t i = 0; i < t_; ++i) {
    list.push_back(piece(gemm, i));
    if (i + 1 < t_) list.push_back(op_.collective(CollectiveKind::send_recv, travels, bytes / t_, plan::kAfterCompute));
  }
  list.push_back(op_.wait(plan::Stream::tensor));
  list.push_back(op_.kernel(gemm.name + " sum", bytes, bytes / t_));
}

// Forward ------------------------------------------------------------------------------------------------------------

void LinearLayer::forward(const Casts& casts) {
  std::vector<Item>& f = node_.forward;
  const bool gathers_anew = fetches_ && !keeps_gathered_ && !buffers_;
  append(f, casts.before_gather);
  if (gathers_anew) f.push_back(op_.alloc(gathered_input, sent_input_));
  if (fetches_ && !overlaps_) all_gather(f, "input", sent_input_);
  append(f, casts.before_product);
  if (scatters_ || reduces_) f.push_back(op_.alloc(partial_output, output_bytes_));
  if (nf4_) op_.dequantise(f, whole_weight, k_ * n_);
  if (gptq_) {
    op_.unpack(f, whole_weight, k_ * n_);
    node_.forward_host += c_.profile.unpack_host;
  }
  const Gemm product{name_, GemmRole::forward, m_, n_, k_};
  if (fetches_ && overlaps_) gathered(f, product, name_ + " gather input", sent_input_);
  else if (scatters_ && overlaps_) scattered(f, product, name_ + " scatter output", output_bytes_);
  else f.push_back(whole(product));
  if (nf4_) f.push_back(op_.free(whole_weight));
  append(f, casts.after_product);
  if (gathers_anew) append(f, freed(gathered_input));
  if (scatters_ || reduces_) sum_output();
  if (bias_ && !low_precision_ && c_.profile.norm == Fusion::eager && sharded_ && row_) f.push_back(op_.kernel("bias add", output_bytes_, output_bytes_));
}

void LinearLayer::sum_output() {
  std::vector<Item>& f = node_.forward;
  if (scatters_) f.push_back({.kind = Item::Kind::produce_outputs});
  if (scatters_ && !overlaps_) reduce_scatter(f, "output", output_bytes_, kBoth);
  if (reduces_) f.push_back(op_.collective(CollectiveKind::all_reduce, name_ + " reduce output", output_bytes_, kBoth));
  // What a collective reads and what it writes are marked alike.
  if (records_ == RecordStreams::all) f.push_back(op_.record_stream(partial_output));
  if (scatters_ && records_ == RecordStreams::all) f.push_back(op_.record(Item::Kind::record_outputs));
  f.push_back(op_.free(partial_output));
}

// Backward: the gradient of the input, then of the weight; collectives overlap with the other GEMM -------------------

void LinearLayer::backward(const Casts& casts, int weight) {
  std::vector<Item>& b = node_.backward;
  append(b, casts.before_gradient_gather);
  if (scatters_) gather_gradient();
  if (regathers_) regather_input();
  append(b, casts.before_gradients);
  append(b, for_input(input_gradient(casts)));
  append(b, casts.after_input);
  if (regathers_) b.push_back(op_.for_weights(op_.wait(plan::Stream::tensor)));
  append(b, for_input(sum_input_gradient()));
  append(b, weight_gradient(casts, weight));
  if (bias_) bias_gradient();
  if (sharded_ && column_) b.push_back(op_.wait(plan::Stream::tensor));
  if (regathers_ && !buffers_) append(b, for_weights(freed(gathered_input)));
  if (gathers_) append(b, for_input({op_.free(partial_input_gradient)}));
  if (scatters_ && !buffers_) append(b, for_weights(freed(gathered_gradient)));
}

/// What a collective has filled, and products have read.
std::vector<Item> LinearLayer::freed(int gathered) const {
  std::vector<Item> list;
  if (records_ == RecordStreams::all && !overlaps_) list.push_back(op_.record_stream(gathered));
  list.push_back(op_.free(gathered));
  return list;
}

void LinearLayer::gather_gradient() {
  std::vector<Item>& b = node_.backward;
  if (!buffers_) b.push_back(op_.alloc(gathered_gradient, sent_gradient_));
  if (overlaps_) return;
  all_gather(b, "gradient", sent_gradient_);
  if (records_ != RecordStreams::none) b.push_back(op_.record(Item::Kind::record_outputs));
}

void LinearLayer::regather_input() {
  std::vector<Item>& b = node_.backward;
  if (!buffers_) b.push_back(op_.for_weights(op_.alloc(gathered_input, sent_input_)));
  b.push_back(op_.for_weights(op_.collective(CollectiveKind::all_gather, name_ + " gather input", sent_input_, plan::kAfterCompute)));
  if (records_ != RecordStreams::none) b.push_back(op_.for_weights(op_.record(Item::Kind::record_inputs)));
}

std::vector<Item> LinearLayer::input_gradient(const Casts& casts) const {
  std::vector<Item> list;
  if (gathers_) list.push_back(op_.alloc(partial_input_gradient, input_bytes_));
  else list.push_back({.kind = Item::Kind::produce_input_gradients});
  if (nf4_) op_.dequantise(list, whole_weight, k_ * n_);
  append(list, casts.before_data_gradient);
  const Gemm product{name_ + " data gradient", GemmRole::data_gradient, m_, k_, n_};
  if (scatters_ && overlaps_) gathered(list, product, name_ + " gather gradient", sent_gradient_);
  else list.push_back(whole(product));
  if (nf4_) list.push_back(op_.free(whole_weight));
  append(list, casts.after_data_gradient);
  return list;
}

/// Each tensor rank of a column-parallel layer has made a part of the sum.
std::vector<Item> LinearLayer::sum_input_gradient() const {
  const int sync = c_.profile.waits_for_input_gradients ? kBoth : plan::kAfterCompute;
  if (c_.gathered) return {};
  if (!gathers_ && sharded_ && column_) return {op_.collective(CollectiveKind::all_reduce, name_ + " reduce gradient", input_bytes_, sync)};
  if (!gathers_) return {};
  std::vector<Item> list{{.kind = Item::Kind::produce_input_gradients}};
  reduce_scatter(list, "gradient", input_bytes_, sync);
  if (records_ != RecordStreams::none) list.push_back(op_.record_stream(partial_input_gradient));
  return list;
}

std::vector<Item> LinearLayer::weight_gradient(const Casts& casts, int weight) const {
  std::vector<Item> list;
  for (const Item& i : casts.before_weight_gradient) list.push_back(op_.for_weights(i));
  if (trained_) {
    const bool fused = c_.profile.fused_gradient_accumulation;
    list.push_back(op_.weight_gradient(weight, op_.gemm(name_ + " weight gradient", GemmRole::weight_gradient, n_, k_, m_, fused ? c_.profile.gradient : c_.activation, fused)));
    list.back().reads_gathered = scatters_;
  }
  for (const Item& i : casts.after_weight_gradient) list.push_back(op_.for_weights(i));
  return list;
}

void LinearLayer::bias_gradient() {
  Weight bias = op_.weight(name_ + ".bias", n_);
  bias.matrix = false;
  bias.replicated_over_tensor = !sharded_ || row_;
  bias.gradient_widened = casts_bias();
  const bool trained = bias.trainable;
  const int weight = tape_.weight(std::move(bias));
  if (!trained) return;
  node_.backward.push_back(op_.weight_gradient(weight, op_.kernel(name_ + " bias gradient", c_.profile.fused_dense ? 0 : output_bytes_, n_ * 4, model::KernelKind::reduction)));
  node_.backward.back().reads_gathered = scatters_;
}

}  // namespace rehearse::strategies
