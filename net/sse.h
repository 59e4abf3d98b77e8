#pragma once

// Server-sent events, as the OpenAI API streams them.

#include <string>
#include <string_view>

namespace meshnet {

/// One event; `json` has no line breaks.
inline std::string sse_event(std::string_view json) {
  return "data: " + std::string(json) + "\n\n";
}

/// The last event of a stream that ended well.
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace meshnet
