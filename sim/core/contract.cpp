#include "sim/core/contract.h"

namespace rehearse {

void contract_failed(const char* kind, const char* condition, const std::string& detail, std::source_location where) {
  std::string text = std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": " + kind + " failed: " + condition;
  if (!detail.empty()) text += " (" + detail + ")";
  throw ContractViolation(text);
}

}  // namespace rehearse
