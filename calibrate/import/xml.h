// The XML that NCCL writes: elements with attributes, nothing else.
// Leaves out text content, entities beyond the five, namespaces and DTDs: NCCL writes none.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rehearse::calibrate {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::vector<XmlElement> children;
  int line = 0;

  std::string attribute(const std::string& key, const std::string& otherwise = {}) const {
    const auto at = attributes.find(key);
    return at == attributes.end() ? otherwise : at->second;
  }
};

/// Throws ConfigError with file:line for text that is no such XML, or nests deeper than 64.
XmlElement parse_xml(const std::string& text, const std::string& file);

}  // namespace rehearse::calibrate
