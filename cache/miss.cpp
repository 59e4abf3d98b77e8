#include "cache/miss.h"

namespace meshnet {

std::string_view to_string(MissReason reason) {
  switch (reason) {
    case MissReason::kUnknownSession:
      return "unknown_session";
    case MissReason::kEvictedTtl:
      return "evicted_ttl";
    case MissReason::kEvictedLru:
      return "evicted_lru";
    case MissReason::kReleased:
      return "released";
    case MissReason::kSupersededEpoch:
      return "superseded_epoch";
    case MissReason::kSeqLenMismatch:
      return "seq_len_mismatch";
    case MissReason::kStartLayerMismatch:
      return "start_layer_mismatch";
    case MissReason::kCachingDisabled:
      return "caching_disabled";
    case MissReason::kStateNotRewindable:
      return "state_not_rewindable";
  }
  throw std::logic_error("not a miss reason");
}

}  // namespace meshnet
