// Puts values on top of one another: `extends: base.yaml` in a file and `--set key=value` on the command
// line. Leaves out what keys are allowed (fields.h). Every value keeps the place where it was written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/document.h"

namespace rehearse::config {

inline constexpr int kMaxExtendedFiles = 64;

/// A model's name as the map that it stands for where keys of it are changed: {preset: name}.
Value as_preset(const Value& name);

/// `top` over `base`: maps merge key by key, anything else in `top` replaces; an empty key in `top` (or
/// `~`) takes away what `base` has under it. An empty `top` changes nothing. A `model` that is a name is merged as its preset,
/// unless `top` has a model of its own (preset, from, hidden). Order: keys of `base`, then the new ones. Precondition: both have the same dotted key.
Value merged(const Value& base, const Value& top);

/// The document with the files that its `extends` names (one name or a list; later ones win, own keys win
/// over all) merged below it, and without the key `extends`. Names are relative to the file that says them.
/// Throws ConfigError: missing file or circle (with the chain of files), more than kMaxExtendedFiles files.
Value resolve_extends(const Document& document);

/// load_document, then resolve_extends.
Value load_layered(const std::filesystem::path& path);

/// Sets one value: "training.micro_batch_size=4", "stages[1].layers=10", "sweep={memory.recompute: [none,
/// full]}". The right side is YAML. Maps on the way are created; an existing key that itself holds dots is
/// found; a `model` that is a name becomes {preset: name}. The new value's place is "<option> <key>". Throws ConfigError when the text has no '=' or the way is
/// blocked.
Value apply_override(const Value& root, std::string_view assignment, std::string_view option = "--set");

/// All of them in order; throws ConfigError with the mistakes of all.
Value apply_overrides(Value root, const std::vector<std::string>& assignments, std::string_view option = "--set");

}  // namespace rehearse::config
