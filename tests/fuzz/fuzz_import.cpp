// Any bytes are a framework's configuration or a ConfigError; what is imported can be written and read again, and every
// value of it has a place in the text. One program per format: REHEARSE_FORMAT.
#include <cstdint>
#include <cstdlib>

#include "sim/config/document.h"
#include "sim/importers/import_file.h"

using namespace rehearse;
using namespace rehearse::importers;

namespace {

void check_places(const config::Value& v) {
  for (const config::Value::Entry& e : v.entries()) check_places(e.value);
  if (v.is_map()) return;
  if (v.path().empty() || (v.at().line > 0 && v.at().file != "fuzz.txt")) std::abort();
}

void run(const std::string& text, const Context& context) {
  try {
    const Imported imported = import_text(text, "fuzz.txt", REHEARSE_FORMAT, context);
    to_lines(imported);
    check_places(imported.keys);
    const config::Value again = config::parse_document(config::to_yaml(imported.keys), "written.yaml").root;
    if (!imported.keys.entries().empty() && !same_content(again, imported.keys)) std::abort();
  } catch (const ConfigError& error) {
    if (error.diagnostics().empty() || error.diagnostics()[0].at.file == "written.yaml") std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  // Text that is not UTF-8 is refused before a format sees it.
  try {
    text = config::checked_utf8(std::move(text), "fuzz.txt");
  } catch (const ConfigError&) {
    return 0;
  }
  run(text, {});
  Context known;
  known.gpus = 64;
  known.gpus_per_node = 8;
  known.hidden = 4096;
  known.layers = 32;
  known.beside = "/nonexistent";
  run(text, known);
  return 0;
}
