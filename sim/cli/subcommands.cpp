// Every subcommand of the program: one line each, one file each.
#include "sim/cli/subcommand.h"

namespace rehearse::cli {

const Catalog<AddSubcommand>& subcommands() {
  static const Catalog<AddSubcommand> list{"subcommand", {
      {"run", "simulate a scenario: does it fit, how fast is it, why", add_run},
      {"explain", "show a stage of the way from the scenario to the answer", add_explain},
      {"compare", "two scenarios: what is different, and what that does", add_compare},
      {"sweep", "simulate every combination of some settings and rank them", add_sweep},
      {"advise", "what to change: until it fits, then until nothing is faster", add_advise},
      {"max-batch", "the largest micro-batch that fits", add_max_batch},
      {"max-model", "the largest model that a cluster and a set of techniques train", add_max_model},
      {"plan", "which machines train a job soonest and cheapest", add_plan},
      {"validate", "predicted against measured, for a table of real runs", add_validate},
      {"calibrate", "fit the models to your own machine's measurements and runs", add_calibrate},
      {"hardware", "list and show GPUs, node designs and fabrics", add_hardware},
      {"model", "list and show models", add_model},
      {"framework", "list and show framework profiles", add_framework},
      {"import", "a framework's own file (DeepSpeed, Megatron, torchtitan, accelerate) becomes a scenario", add_import},
      {"schema", "JSON Schema of scenario files, for editors", add_schema},
      {"reference", "reference of scenario files, as Markdown", add_reference},
      {"doctor", "check the program's data files and surroundings", add_doctor},
  }};
  return list;
}

}  // namespace rehearse::cli
