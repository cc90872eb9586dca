// One linear layer of one rank while it is written to its tape: the product and its two gradients, what travels around them
// (linear_layer.cpp), and what casts their operands (linear_casts.cpp).
// Leaves out adapters (adapter.cpp) and casts of the residual stream (linear.cpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

class LinearLayer {
 public:
  /// Unsharded widths in -> out, as in Operators::linear.
  LinearLayer(const LowerContext& context, Tape& tape, TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Operators::Split split)
      : c_(context), tape_(tape), op_(context, tape), x_(x), name_(name), in_(in), out_(out), bias_(bias), split_(split) {}
  /// Adds the layer's node to the tape. Returns its output.
  TensorId write();
  /// Temporaries from this number on are free for what others put around the product in its node.
  static constexpr int kFirstFree = 18;

 private:
  /// Numbers of the node's temporaries; casts share one where they do not live at the same time.
  enum Temporary : int {
    gathered_input = 0, partial_output = 1, gathered_gradient = 2, partial_input_gradient = 3,
    cast_input = 6, cast_gradient = 6, cast_weight = 7, transposed_weight = 7, transposed_gradient = 8, cast_weight_columns = 9,
    cast_gradient_columns = 10, transposed_input = 11, cast_input_columns = 12, transposed_narrow_weight = 13, unordered = 14,
    whole_weight = 15,   // and the two after it, kFirstFree - 1 the last
  };
  /// What runs beside the products of a layer whose operands have fewer than 16 bits, in the order of forward and backward.
  struct Casts {
    std::vector<Item> before_gather, before_product, after_product;
    std::vector<Item> before_gradient_gather, before_gradients, before_data_gradient, after_data_gradient, after_input, before_weight_gradient, after_weight_gradient;
  };
  /// One of the layer's products: rows x depth by depth x columns.
  struct Gemm {
    std::string name;
    model::GemmRole role = model::GemmRole::forward;
    std::int64_t rows = 0, columns = 0, depth = 0;
  };

  Weight matrix() const;
  void keep_operands();
  void keep(const std::string& what, std::int64_t bytes);
  bool autocasts_weight() const;
  bool autocast_copies_weight() const;
  bool casts_bias() const;
  void copy_weight();

  void forward(const Casts& casts);
  void sum_output();
  std::vector<Item> freed(int gathered) const;
  void backward(const Casts& casts, int weight);
  void gather_gradient();
  void regather_input();
  std::vector<Item> input_gradient(const Casts& casts) const;
  std::vector<Item> sum_input_gradient() const;
  void all_gather(std::vector<Item>& list, const std::string& what, std::int64_t bytes) const;
  void reduce_scatter(std::vector<Item>& list, const std::string& what, std::int64_t bytes, int sync) const;
  std::vector<Item> weight_gradient(const Casts& casts, int weight) const;
  void bias_gradient();
  Item whole(const Gemm& gemm) const;
  Item piece(const Gemm& gemm, std::int64_t i) const;
  void gathered(std::vector<Item>& list, const Gemm& gemm, const std::string& travels, std::int64_t bytes) const;
  void scattered(std::vector<Item>& list, const Gemm& gemm, const std::string& travels, std::int64_t bytes) const;

  // linear_casts.cpp
  Casts casts() const;
  Casts casts_by_row() const;
  Item rescale(const std::string& what, std::int64_t bytes) const;
  std::vector<Item> casts_of_input() const;
  std::vector<Item> casts_of_gradient() const;
  void find_scale(std::vector<Item>& list, const std::string& operand, std::int64_t bytes, bool maker_finds_maximum) const;
  bool made_by(std::string_view kind) const;
  bool shares_input() const;
  bool is_torchao(DType format) const { return c_.gemm == format && !c_.profile.transformer_engine; }

  const LowerContext& c_;
  Tape& tape_;
  const Operators op_;
  const TensorId x_;
  const std::string& name_;
  const std::int64_t in_, out_;
  const bool bias_;
  const Operators::Split split_;

  // Of the tensor group: who holds what
  const std::int64_t t_ = c_.tensor;
  const bool column_ = split_ == Operators::Split::column, row_ = split_ == Operators::Split::row;
  const bool sharded_ = (column_ || row_) && t_ > 1;
  const bool gathers_ = sharded_ && column_ && c_.sequence_parallel && !c_.gathered;          // its input, and scatters the input's gradient
  const bool scatters_ = sharded_ && row_ && c_.sequence_parallel;                            // its output, and gathers the output's gradient
  const bool reduces_ = sharded_ && row_ && !c_.sequence_parallel && !c_.joint_reduction;     // its output
  const bool overlaps_ = sharded_ && c_.sequence_parallel && c_.layer >= 0 && c_.profile.overlap_tensor;

  // This rank's product, m x k by k x n; rows of the input before it is gathered, and of the output as it stays here
  const std::int64_t m_ = column_ || row_ ? c_.tokens : c_.stream_tokens(), k_ = row_ ? in_ / t_ : in_, n_ = column_ ? out_ / t_ : out_;
  const std::int64_t own_rows_ = gathers_ ? m_ / t_ : m_, out_rows_ = scatters_ ? m_ / t_ : m_;
  const std::int64_t input_bytes_ = m_ * k_ * c_.element(), output_bytes_ = m_ * n_ * c_.element(), weight_bytes_ = k_ * n_ * c_.element();

  // Operands travel in the format of the product (Transformer Engine's quantised all-gather, torchtitan's Float8ColwiseParallel). Block-scaled
  // gradients travel twice, scaled along rows and along columns.
  // Operands with row scales travel in 16 bit and are cast on arrival (torchtitan parallelize_llama: rowwise recipes take the plain plan).
  const bool low_precision_ = bits(c_.gemm) <= 8, block_scaled_ = c_.gemm == DType::mxfp8 || c_.gemm == DType::nvfp4;
  const bool by_tensor_ = op_.scales_from_tensor() && !c_.row_scaled && !c_.profile.transformer_engine;   // torchao's dynamic scales of whole tensors
  const bool travels_narrow_ = low_precision_ && !c_.row_scaled;
  std::int64_t narrow(std::int64_t elements) const { return elements * bits(c_.gemm) / 8; }
  const std::int64_t sent_input_ = travels_narrow_ ? narrow(m_ * k_) : input_bytes_;
  const std::int64_t sent_gradient_ = travels_narrow_ ? narrow(m_ * n_) * (block_scaled_ ? 2 : 1) : output_bytes_;

  const bool trained_ = op_.weight(name_ + ".weight", k_ * n_).trainable;
  const bool quantised_ = !trained_ && quantises(c_.strategy.tuning, c_.profile, name_) && !(c_.model.tied_embeddings && name_ == "lm_head");
  const bool gathered_narrow_ = low_precision_ && !quantised_ && c_.strategy.data_parallel.fp8_gather != NarrowGather::none;
  const bool nf4_ = quantised_ && c_.strategy.tuning.format == FourBit::nf4, gptq_ = quantised_ && !nf4_;
  const bool fetches_ = gathers_ && !c_.reads_gathered;                                       // by itself
  const bool keeps_gathered_ = fetches_ && trained_ && (c_.profile.keeps_gathered_input || c_.profile.shares_gathered);   // until backward, which else gathers it again
  const bool regathers_ = fetches_ && trained_ && !keeps_gathered_;
  const bool buffers_ = c_.profile.gathers_into_buffers;
  const bool reorders_ = c_.profile.sequence_second && !overlaps_;   // tensors that travel along the sequence
  const RecordStreams records_ = c_.profile.record_streams;

  Node node_{};
};

}  // namespace rehearse::strategies
