#pragma once

#include <cstdint>
#include <string>

namespace meshnet {

/// Layers [first, last) of the whole model, numbered absolutely. Shown to people inclusive: "0-20"
/// is {0, 21}.
struct LayerRange {
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first; }
  bool contains(int64_t layer) const { return first <= layer && layer < last; }
  bool operator==(const LayerRange&) const = default;
};

/// "0-20" for {0, 21}; "7" for {7, 8}.
inline std::string to_string(const LayerRange& range) {
  const std::string first = std::to_string(range.first);
  return range.size() == 1 ? first : first + "-" + std::to_string(range.last - 1);
}

}  // namespace meshnet
