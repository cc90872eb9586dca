// What the rules about combinations (rules.cpp, memory/rules.cpp) share: where they write what is wrong, and what they often ask.
// Leaves out the question itself: problems_of (plan_writer.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/core/error.h"
#include "sim/model/description.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// Collects what is wrong, in the user's keys and words.
class Rules {
 public:
  void forbid(bool broken, const char* key, std::string problem, std::string fix) {
    if (broken) out_.push_back({{}, key, std::move(problem), std::move(fix), ""});
  }
  void add(Diagnostic problem) { out_.push_back(std::move(problem)); }
  bool empty() const { return out_.empty(); }
  std::vector<Diagnostic> take() { return std::move(out_); }

 private:
  std::vector<Diagnostic> out_;
};

/// Attention without a fused kernel.
inline bool scores_in_memory(const Training& t, const FrameworkProfile& profile) { return t.attention.value_or(profile.attention_fused ? "flash" : "unfused") == "unfused"; }

inline bool is_fsdp(DataParallelKind kind) { return kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2; }
inline bool shards_parameters(DataParallelKind kind) { return kind == DataParallelKind::zero3 || is_fsdp(kind); }
/// Replicas that PyTorch keeps whole.
inline bool keeps_whole_states(DataParallelKind kind) { return kind == DataParallelKind::none || kind == DataParallelKind::ddp || kind == DataParallelKind::one_process; }

/// DeepSpeed's ways to keep checkpoints, and paged optimizer states.
void checkpoint_rules(const model::ModelDescription& model, const Strategy& s, Rules& rules);
/// Sequences in pieces, what is recomputed, what is stored elsewhere, and what optimizers need of their states.
void memory_rules(const model::ModelDescription& model, const Strategy& s, const FrameworkProfile& profile, Rules& rules);

}  // namespace rehearse::strategies
