#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace meshnet {

/// Decimal digits and nothing else (no sign, no space), at most `max`; else nothing.
inline std::optional<int64_t> parse_number(std::string_view text, int64_t max) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end || number > static_cast<uint64_t>(max)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

}  // namespace meshnet
