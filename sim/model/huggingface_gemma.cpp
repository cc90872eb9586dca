#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

ModelDescription read_any_gemma(ModelFields& fields, const char* family, const FamilyDefaults& defaults) {
  // The first Gemma files said hidden_act: gelu and meant the tanh form; the class overrides it, so do we.
  fields.ignore({"hidden_act"}, "Gemma always uses the tanh form of GELU");
  ModelDescription model = read_llama_like(fields, defaults);
  model.family = family;
  model.activation = Activation::gelu_tanh;
  model.scaled_embedding = model.norm_weight_in_fp32 = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  fields.refuse_if_set("use_bidirectional_attention",
                       "bidirectional attention is not a decoder's (not supported)");
  return model;
}

}  // namespace

ModelDescription read_gemma(ModelFields& fields) {
  return read_any_gemma(fields, "gemma", {24576, 16, 16, 256, 256000, true, Activation::gelu_tanh});
}

ModelDescription read_gemma2(ModelFields& fields) {
  ModelDescription model =
      read_any_gemma(fields, "gemma2", {9216, 8, 4, 256, 256000, true, Activation::gelu_tanh});
  model.norms_per_layer = 4;
  model.softcapped_logits = fields.number_or_zero("final_logit_softcapping", 30) > 0;
  const std::int64_t window = fields.integer_or_zero("sliding_window", 4096);
  if (!read_layer_types(fields, model, window))
    set_windows(model, window, false, [](std::int64_t i) { return i % 2 == 0; });
  return model;
}

ModelDescription read_gemma3(ModelFields& fields) {
  ModelDescription model =
      read_any_gemma(fields, "gemma3", {9216, 8, 4, 256, 262208, true, Activation::gelu_tanh});
  model.norms_per_layer = 4;
  model.softcapped_logits = fields.is_present("final_logit_softcapping") && fields.number_or_zero("final_logit_softcapping", 0) > 0;
  model.qk_norm = true;
  const std::int64_t window = fields.integer_or_zero("sliding_window", 4096);
  // Five local layers, then a global one.
  const std::int64_t pattern = fields.integer({"sliding_window_pattern", "_sliding_window_pattern"}, 6);
  if (pattern < 1) fields.complain("sliding_window_pattern", "must be at least 1");
  if (!read_layer_types(fields, model, window) && pattern >= 1)
    set_windows(model, window, false, [&](std::int64_t i) { return (i + 1) % pattern != 0; });
  return model;
}

}  // namespace rehearse::model
