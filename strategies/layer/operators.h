// The operators that layers are made of, each lowered to kernels, collectives and kept tensors as a framework profile
// says. Leaves out which operators a layer has (transformer_layer.cpp, head.cpp) and lifetimes (tape_emitter.h).
#pragma once

#include <string>

#include "sim/model/description.h"
#include "sim/plan/builder.h"
#include "strategies/framework/profile.h"
#include "strategies/layer/tape.h"
#include "strategies/spec.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {

/// Everything that lowering needs to know, with shapes of one rank and one micro-batch.
struct LowerContext {
  const model::ModelDescription& model;
  const Strategy& strategy;
  const FrameworkProfile& profile;
  plan::PlanBuilder& builder;

  std::int64_t batch = 1;          // samples
  std::int64_t sequence = 0;       // tokens of one sample on this rank (context parallelism divides)
  std::int64_t tokens = 0;         // batch * sequence
  std::int64_t tensor = 1;         // tensor-parallel degree
  bool sequence_parallel = false;
  DType activation = DType::bf16;  // of the residual stream
  DType gemm = DType::bf16;        // operands of linear layers
  bool row_scaled = false;         // 8-bit operands have a scale per row along the sum of each product: each is cast for it anew
  int layer = -1;                  // of the model; -1: embedding or head
  int expert_rank = 0;             // among the expert-parallel ranks
  int routing_draw = 0;            // of the micro-batches that the router treats differently
  int expert_inside = 0;           // of them: neighbours that exchange tokens first; 0: nobody does
  bool joint_reduction = false;    // outputs of row-parallel layers are not reduced one by one: the layer reduces their sum
  bool gathered = false;           // column-parallel layers find their input gathered, and leave the sum of its gradient to what gathered it
  bool reads_gathered = false;     // a column-parallel layer reads what another has gathered and keeps, and scatters its own input gradient
  bool adapter = false;            // lowering an adapter: its weights are trained and carry none
  bool autocast_stream = false;    // norms of fp32 weights make fp32 of what they read, and so is the residual stream; each linear layer casts its input for itself
  std::string attention;           // "flash" or "unfused"

  std::int64_t element() const { return bits(activation) / 8; }
  /// Bytes per element of the residual stream.
  std::int64_t stream_element() const { return profile.wide_residual || autocast_stream ? 4 : element(); }
  Fusion activation_fusion() const { return model.gated_mlp ? profile.gated_activation.value_or(profile.activation) : profile.activation; }
  /// Operands of products of activations: TF32 is a way to multiply fp32.
  DType product() const { return gemm == DType::tf32 ? DType::tf32 : activation; }
  /// An fp32 stream around 16-bit products (autocast).
  bool mixed() const { return activation == DType::fp32 && bits(gemm) == 16; }
  /// The same place with a stream in the format of its products.
  LowerContext narrowed() const {
    LowerContext n = *this;
    if (mixed()) n.activation = gemm;
    return n;
  }
  bool trains(const std::string& weight) const { return adapter || strategies::trains(strategy.tuning, weight, layer); }
  /// Keys and values are copied to all query heads before attention; Ulysses copies what has arrived (UlyssesSPAttentionHF),
  /// or sends the copies (XTuner's dispatch/llama.py, llama_attn_forward).
  bool repeats_before_exchange() const {
    const ContextKind kind = context_kind(strategy, profile);
    const bool exchanges = strategy.parallelism.degrees.context > 1 && (kind == ContextKind::ulysses || kind == ContextKind::ulysses_ring);
    return profile.repeat_kv && model.kv_heads < model.heads && (!exchanges || profile.transformer_engine || profile.exchanges_repeated_kv);
  }
  /// Tokens of the residual stream on this rank: split over the tensor group with sequence parallelism.
  std::int64_t stream_tokens() const { return sequence_parallel ? tokens / tensor : tokens; }
};

/// Attention as one rank's kernel sees it: heads and tokens that it has, and the window, if any key is outside of it.
struct AttentionShape {
  std::int64_t batch = 1, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0, length = 0, window = 0;
};

/// Fills a context from a strategy. Shapes that do not divide are reported by problems_of (strategies/plan_writer.h) before.
LowerContext make_context(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, plan::PlanBuilder& builder);

class Operators {
 public:
  Operators(const LowerContext& context, Tape& tape) : c_(context), tape_(tape) {}

  /// Pointwise row normalisation of `rows` x `width`, with a weight if it is `learned`. `rotated`: the kernel goes on to rotate what it has
  /// normalised. Returns the normalised tensor.
  TensorId norm(TensorId x, const std::string& name, std::int64_t rows, std::int64_t width, bool replicated = true, bool learned = true, bool rotated = false);
  /// Unfused attention with Megatron's kernel for scale, mask and softmax, whose result is another tensor: a variable of the module's forward
  /// (matmul_result) has the scores until it returns. Source: Megatron-LM (2021) megatron/model/transformer.py, ParallelAttention.forward.
  bool fuses_softmax() const { return c_.profile.activation == Fusion::fused && !c_.profile.softmax_in_fp32; }
  /// Norms of queries and keys are one kernel with the rotation that follows: TorchInductor's, of norms within a head.
  bool rotates_what_it_normalises() const;

  enum class Split { column, row, none };
  /// A linear layer in -> out (unsharded widths). `column`: out is divided over the tensor group and x is gathered
  /// (sequence parallel) or whole; `row`: in is divided, the result is reduced. Adds an adapter where the job has one.
  TensorId linear(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split);

  /// What several column-parallel layers read, gathered from the tensor group (sequence parallel): a tensor that they keep. Its gradient,
  /// summed over them, is scattered once.
  TensorId gather_sequence(TensorId x, const std::string& name, std::int64_t width);

  /// Rotary embedding of a tensor of `width` elements per token. Returns the rotated tensor.
  TensorId rope(TensorId x, const std::string& name, std::int64_t width);
  /// What rotates `heads` of `head_dim`, of which `turning` elements turn, without a kernel of its own (RopeForm::angles). `interleaved`: pairs lie
  /// side by side, as multi-head latent attention has them.
  struct Rotation {
    std::vector<Item> forward, backward;
  };
  /// Cosines or sines of such angles in the activations' format, which backward keeps.
  std::int64_t angles_bytes(std::int64_t turning) const;
  Rotation rotation(std::int64_t heads, std::int64_t head_dim, std::int64_t turning, bool interleaved) const;
  /// Copies keys or values to all query heads.
  TensorId repeat(TensorId x, const std::string& name, std::int64_t from_width, std::int64_t to_width);
  /// Cuts a tensor of `rows` (0: one per token) into parts of these widths per row, without copying.
  std::vector<TensorId> split(TensorId x, const std::string& name, const std::vector<std::int64_t>& widths, std::int64_t rows = 0);
  TensorId attention(TensorId q, TensorId k, TensorId v, const model::Layer& layer);
  /// LLaMA-Adapter: what the queries find in the layer's learned prompt is added to attention's output through a gate per head.
  TensorId with_prompt(TensorId q, TensorId y);
  /// Fused attention among the tokens that this rank has.
  TensorId attention(TensorId q, TensorId k, TensorId v, const AttentionShape& shape);
  AttentionShape computed_attention(const AttentionShape& shape) const;
  bool has_narrow_attention() const { return c_.strategy.training.fp8_attention && bits(c_.gemm) <= 8; }
  Item attention_kernel(model::KernelKind kind, const AttentionShape& shape, bool causal, std::int64_t queries, std::int64_t keys) const;
  /// Queries, keys and values in 8 bits around a node of attention, and what backward keeps of them.
  void narrow_attention(Node& node, const AttentionShape& shape);
  void sinks(Node& node);
  void pack_attention_output(Node& node, TensorId out);
  TensorId rescaled_for_sinks(TensorId out, TensorId lse, const AttentionShape& s);
  TensorId activation(TensorId gate_up, TensorId up, std::int64_t width, const std::string& prefix = "");
  TensorId residual(TensorId stream, TensorId branch, const std::string& name);
  /// The same elements in another format.
  TensorId cast(TensorId x, const std::string& name, std::int64_t elements, DType to);

  /// 8-bit operands: whether scales want a pass over the tensor first; copies that are written (rows and columns).
  bool scales_from_tensor() const { return (c_.gemm == DType::fp8 && c_.profile.current_scaling) || (c_.gemm == DType::nvfp4 && c_.profile.transformer_engine); }
  /// What Transformer Engine's products read of a weight instead of it: rows and, where backward needs them apart, columns. Under
  /// fp8_parameters these are the weight itself, which ranks gather in 8 bits, or before blocks are scaled in 16
  /// (Megatron's --fp8-param-gather, --reuse-grad-buf-for-mxfp8-param-ag).
  void cast_by_engine(Weight& weight) const;
  /// The second orientation of an fp8 weight is made for each backward.
  bool transposes_weights() const { return c_.gemm == DType::fp8 && c_.profile.transposes_fp8 && c_.profile.transformer_engine && !c_.profile.keeps_transposed_weights; }
  /// Operands of weight gradients are made from those of the other products when they are wanted.
  bool columns_in_backward() const { return c_.gemm == DType::fp8 && c_.profile.transposes_fp8 && c_.profile.transformer_engine && c_.profile.columns_in_backward; }
  std::int64_t quantised_copies() const { return !columns_in_backward() && (c_.gemm != DType::fp8 || c_.profile.transposes_fp8) ? 2 : 1; }
  /// Bytes of values in 8 bits with an fp32 scale for each 128 of them along a row.
  static std::int64_t block_scaled(std::int64_t elements) { return elements + elements / 128 * 4; }

  // Building bricks, also used by head.cpp
  Weight weight(const std::string& name, std::int64_t elements) const;
  Item swizzle(const std::string& name, std::int64_t elements) const;
  /// `role`: backward of norms and embeddings reaches another share of the bandwidth than their forward.
  Item kernel(const std::string& name, std::int64_t read, std::int64_t written, model::KernelKind kind = model::KernelKind::elementwise,
              model::GemmRole role = model::GemmRole::forward) const;
  /// aten::embedding_dense_backward, after the zeros: rows of `tokens` are added to those of their words.
  Item embedding_backward(std::int64_t tokens, std::int64_t width) const;
  /// PyTorch's log_softmax over a vocabulary (aten/src/ATen/native/cuda/SoftMax.cu): a block goes over its row for the maximum, for the sum and for
  /// the result; backward for the sum and for the result. The rows that are under way at once are more than the L2 holds from 0.2 MB each on:
  /// calibrate/ground_truth/operators.py on an H200, six vocabularies in fp32 and bf16: four times the tensor at 0.88 of the HBM's bandwidth both ways,
  /// within 6 %; 2.9 to 3.4 times forward where a row has 0.10 to 0.13 MB. That smaller rows, or a larger cache, save passes is left out.
  Item log_softmax(std::int64_t bytes) const { return kernel("log softmax", 3 * bytes, bytes); }
  Item log_softmax_backward(std::int64_t bytes) const { return kernel("log softmax backward", 3 * bytes, bytes); }
  /// A strided kernel whose results are not of the activations' format: `width` bytes each.
  Item strided(const std::string& name, std::int64_t read, std::int64_t written, std::int64_t width) const;
  void launch_from_python(Node& node, int nodes = 1) const;
  /// Is this tensor of so many elements in fp32?
  bool is_wide(TensorId x, std::int64_t elements) const;
  /// x.float(), or back to 16 bits; `read` and `written` bytes.
  Item convert(const std::string& name, std::int64_t read, std::int64_t written) const;
  /// A sum or product of `elements` elements whose operands differ in width.
  Item mixed(const std::string& name, std::int64_t read, std::int64_t written, std::int64_t elements) const;
  Item gemm(const std::string& name, model::GemmRole role, std::int64_t m, std::int64_t n, std::int64_t k, DType output, bool accumulate, bool staggered = false) const;
  Item collective(CollectiveKind kind, const std::string& name, std::int64_t bytes, int sync, plan::GroupAxis axis = plan::GroupAxis::tensor,
                  plan::Stream stream = plan::Stream::tensor) const;
  static Item alloc(int temporary, std::int64_t bytes) { return {.kind = Item::Kind::alloc, .temporary = temporary, .bytes = bytes}; }
  /// Memory that a kernel borrows while it runs.
  static Item workspace(int temporary, std::int64_t bytes) {
    return {.kind = Item::Kind::alloc, .temporary = temporary, .bytes = bytes, .category = plan::Category::workspace};
  }
  static Item free(int temporary) { return {.kind = Item::Kind::free, .temporary = temporary}; }
  /// A collective's buffer, which ProcessGroupNCCL marks as used on its stream.
  static Item record_stream(int temporary, plan::Stream stream = plan::Stream::tensor) { return {.kind = Item::Kind::record_stream, .stream = stream, .temporary = temporary}; }
  static Item record(Item::Kind which, plan::Stream stream = plan::Stream::tensor) { return {.kind = which, .stream = stream}; }
  static Item for_weights(Item item) { item.for_weights = true; return item; }
  static Item wait(plan::Stream stream) { return {.kind = Item::Kind::wait, .stream = stream}; }
  Item weight_gradient(int weight, Item made_by) const;
  void dequantise(std::vector<Item>& list, int temporary, std::int64_t elements) const;
  void unpack(std::vector<Item>& list, int temporary, std::int64_t elements) const;

 private:
  bool complex_rope() const;
  bool rotates_by_document() const;
  Rotation rotate_once(std::int64_t bytes, std::int64_t turning, std::int64_t table, bool interleaved) const;
  bool sums_and_normalises(TensorId x) const;
  TensorId narrow_product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split);
  TensorId product(TensorId x, const std::string& name, std::int64_t in, std::int64_t out, bool bias, Split split);
  TensorId scaled_and_shifted(TensorId y, const std::string& name, std::int64_t out, Split split);
  TensorId with_adapter(TensorId x, TensorId y, const std::string& name, std::int64_t in, std::int64_t out, Split split);
  void layer_norm_spelled(TensorId x, TensorId y, const std::string& name, std::int64_t elements, std::int64_t rows, int weight);  // weight < 0: none
  void norm_upcasts(Node& node, const std::string& name, std::int64_t elements);
  void norm_eager(Node& node, TensorId x, TensorId y, const std::string& name, std::int64_t elements, std::int64_t rows, int weight);  // weight < 0: none
  TensorId gelu_eager(TensorId x, std::int64_t width);
  TensorId swiglu_native(TensorId gate, TensorId up, std::int64_t width, const std::string& prefix);
  TensorId gelu_scripted(TensorId x, std::int64_t width);
  std::vector<Item> causal_mask() const;
  TensorId clamp(TensorId scores, std::int64_t elements, std::int64_t bytes);
  TensorId softmax(TensorId scores, std::int64_t elements);
  TensorId attention_unfused(TensorId q, TensorId k, TensorId v, const model::Layer& layer);

  const LowerContext& c_;
  Tape& tape_;
};

}  // namespace rehearse::strategies
