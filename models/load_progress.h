#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace meshnet {

/// What the operator hears of a load that takes long: a line every ten seconds. Which tensor it is
/// at says how far it is, since a node's layers are loaded in order.
class LoadProgress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit LoadProgress(Clock::time_point started);
  /// To be called when tensor `name`, `nbytes` in memory, is in place. The line that is then due,
  /// if one is.
  std::optional<std::string> add(std::string_view name, int64_t nbytes, Clock::time_point now);

 private:
  Clock::time_point started_;
  Clock::time_point said_;
  int64_t nbytes_ = 0;
};

}  // namespace meshnet
