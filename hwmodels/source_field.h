// The key `source` that every table of a data file has. Leaves out the tables (collective/parameters.cpp, topology/cluster.cpp).
#pragma once

#include "sim/config/fields.h"

namespace rehearse::hwmodels {

/// Says where the numbers of a table come from; the text is for readers of the file.
template <typename T>
config::Field<T> source_field() {
  return config::custom<T>("source", "where the numbers of this table come from", "text", R"({"type":"string"})",
                           [](const config::Value& value, T&, config::FieldReader& reader) {
                             if (!value.is_scalar() || value.text().empty()) reader.complain(value, "is no text", "Name the source");
                           })
      .required();
}

}  // namespace rehearse::hwmodels
