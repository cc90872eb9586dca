// Any bytes are a tree or a ConfigError, and a tree that is written reads back the same.
#include <cstdint>
#include <cstdlib>

#include "sim/config/layers.h"
#include "sim/config/units.h"

using namespace rehearse;
using namespace rehearse::config;

namespace {

void read_as_everything(const Value& value) {
  parse_integer(value.text());
  parse_number(value.text());
  parse_fraction(value.text());
  if (const auto size = parse_bytes(value.text()))
    if (parse_bytes(to_text(*size.value)).value != size.value) std::abort();
  if (const auto time = parse_duration(value.text()))
    if (parse_duration(to_text(*time.value)).value != time.value) std::abort();
  if (const auto rate = parse_rate(value.text()))
    if (parse_rate(to_text(*rate.value)).value != rate.value) std::abort();
  parse_flops_rate(value.text());
  for (const Value& item : value.items()) read_as_everything(item);
  for (const Value::Entry& entry : value.entries()) read_as_everything(entry.value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const Value root = parse_document(text, "fuzz.yaml").root;
    read_as_everything(root);
    const std::string written = to_yaml(root);
    if (!same_content(parse_document(written, "written.yaml").root, root)) std::abort();
    if (!same_content(merged(root, root), root)) std::abort();
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty() || error.diagnostics()[0].at.file == "written.yaml") std::abort();
  }
  try {
    apply_override(Value(), text);
  } catch (const ConfigError&) {
  }
  return 0;
}
