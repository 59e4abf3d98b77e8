#pragma once

// Names and limits of POST /forward. Internal to wire_parse.cpp and wire_format.cpp.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace meshnet::wire {

inline constexpr std::string_view kSession = "X-Meshnet-Session";
inline constexpr std::string_view kCache = "X-Meshnet-Cache";
inline constexpr std::string_view kPastLen = "X-Meshnet-Past-Len";
inline constexpr std::string_view kHopIndex = "X-Meshnet-Hop-Index";
inline constexpr std::string_view kStartLayer = "X-Meshnet-Start-Layer";
inline constexpr std::string_view kProtocol = "X-Meshnet-Protocol";
inline constexpr std::string_view kRoute = "X-Meshnet-Route";
inline constexpr std::string_view kEpoch = "X-Meshnet-Epoch";
inline constexpr std::string_view kDtype = "X-Meshnet-Dtype";
inline constexpr std::string_view kShape = "X-Meshnet-Shape";
inline constexpr std::string_view kModel = "X-Meshnet-Model";
inline constexpr std::string_view kRecipe = "X-Meshnet-Recipe";
inline constexpr std::string_view kMore = "X-Meshnet-More";
inline constexpr std::string_view kMetaLength = "X-Meshnet-Meta-Length";
inline constexpr std::string_view kTrace = "X-Meshnet-Trace";
inline constexpr std::string_view kServerTiming = "Server-Timing";

inline constexpr std::string_view kTensorType = "application/octet-stream";
inline constexpr std::string_view kJsonType = "application/json";

/// Lengths of ids, fingerprints and names.
inline constexpr std::size_t kMaxText = 128;
inline constexpr std::size_t kMaxHops = 64;
/// Largest count in a header: what JSON numbers hold exactly, and far from where sums overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 53;

}  // namespace meshnet::wire
