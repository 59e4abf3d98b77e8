#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshnet {

/// Finds stop strings in text that arrives in pieces. Text that may be the start of one is held
/// back until it is known.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Text that is certainly no part of a stop string. Everything from the first stop string on is
  /// dropped.
  std::string push(std::string_view text);
  bool stopped() const { return stopped_; }
  /// What is still held back when the generation ends otherwise.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace meshnet
