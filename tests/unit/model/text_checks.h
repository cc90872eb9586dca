// Assertions about text for the model room's tests: "this message says that".
// Leaves out exact comparison (EXPECT_EQ).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace rehearse::model {

inline testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in:\n" << text;
}

inline testing::AssertionResult has_line(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines)
    if (line.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is in no line of "
                                     << testing::PrintToString(lines);
}

}  // namespace rehearse::model
