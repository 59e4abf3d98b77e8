#pragma once

#include <variant>

#include "cache/kv_cache.h"
#include "cache/recurrent_cache.h"

namespace meshnet {

/// One layer's state for one session. Nothing but this folder and the layer that it belongs to
/// looks inside.
using LayerCache = std::variant<KvCache, SlidingKvCache, RecurrentCache>;

/// The empty state of a layer: no memory for K/V yet, zeros for recurrent state. Throws
/// std::invalid_argument for a sliding window below 1, c10::Error when out of memory.
LayerCache make_layer_cache(const LayerGeometry& geometry, at::ScalarType dtype, at::Device device);

int64_t nbytes(const LayerCache& cache);

/// Whether the state can be rolled back to `length` tokens (recurrent state to 0 and to where it
/// is, which only the caller knows to be `current`).
bool can_truncate(const LayerCache& cache, int64_t current, int64_t length);
/// Rolls back. Only after can_truncate.
void truncate(LayerCache& cache, int64_t length);

}  // namespace meshnet
