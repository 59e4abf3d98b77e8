#include "runtime/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace meshnet {
namespace {

/// Length of the longest end of `text` that is a proper beginning of `stop`.
std::size_t partial_match(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;

  std::size_t first = std::string::npos;
  for (const auto& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, {}).substr(0, first);
  }

  std::size_t keep = 0;
  for (const auto& stop : stops_) keep = std::max(keep, partial_match(held_, stop));
  std::string ready = held_.substr(0, held_.size() - keep);
  held_.erase(0, ready.size());
  return ready;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace meshnet
