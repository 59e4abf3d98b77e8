#pragma once

// JSON that others sent: limits that nlohmann-json does not have.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace meshnet {

/// Nesting that a client may send. Whatever later walks the value recursively needs that much
/// stack.
inline constexpr int kMaxJsonDepth = 64;
/// Nesting of JSON between nodes: a client's value (a schema, say) inside a few levels of ours.
inline constexpr int kMaxPeerJsonDepth = kMaxJsonDepth + 16;
/// Keys of one object: ordered_json looks keys up one by one, so without a bound a few megabytes of
/// keys would take minutes.
inline constexpr std::size_t kMaxJsonKeys = 512;

/// Text → value that keeps the order of keys, as chat templates print it. Throws
/// std::invalid_argument, with a short reason, for anything else than JSON in UTF-8 within the
/// limits.
nlohmann::ordered_json parse_json(const std::string& text, int max_depth);

/// Value → text; bytes that are no UTF-8 become U+FFFD, so this never throws.
std::string dump_json(const nlohmann::ordered_json& value);

}  // namespace meshnet
