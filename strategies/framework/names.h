// Names that users have for frameworks and that no profile has: which profiles they can mean. A profile is never chosen by
// such a name, since several releases or ways of one framework are different programs.
#pragma once

#include <string>

namespace rehearse::strategies {

/// "Use megatron-core (Megatron-LM / ...), ...": what to write in place of `name`; empty: nothing is known of it.
std::string profiles_meant_by(const std::string& name);

}  // namespace rehearse::strategies
