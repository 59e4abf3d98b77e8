#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace meshnet {

/// Why a step cannot be served from state.
enum class MissReason {
  kUnknownSession,
  kEvictedTtl,
  kEvictedLru,
  kReleased,
  kSupersededEpoch,
  kSeqLenMismatch,
  kStartLayerMismatch,
  kCachingDisabled,
  kStateNotRewindable,
};
/// "unknown_session", "evicted_ttl", ...
std::string_view to_string(MissReason reason);

struct Miss {
  MissReason reason;
  std::string message;  ///< a sentence: expected, got
};

/// Miss, thrown.
struct CacheMiss : std::runtime_error {
  explicit CacheMiss(Miss thrown) : std::runtime_error(thrown.message), miss(std::move(thrown)) {}
  Miss miss;
};

}  // namespace meshnet
