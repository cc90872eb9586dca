// Any bytes are a model of Hugging Face or a ConfigError; a model that is read has no problems and can be counted.
#include <cstdint>
#include <cstdlib>

#include "sim/config/document.h"
#include "sim/model/describe.h"
#include "sim/model/huggingface.h"

using namespace rehearse;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const config::Value root = config::parse_document(std::string(reinterpret_cast<const char*>(data), size), "fuzz.json").root;
    const model::ImportedModel imported = model::import_huggingface(root);
    if (!model::problems_of(imported.model).empty()) std::abort();
    if (model::count_parameters(imported.model).total < 0) std::abort();
    model::describe(imported.model);
    model::to_lines(imported.report);
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty()) std::abort();
  }
  return 0;
}
