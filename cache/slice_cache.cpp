#include "cache/slice_cache.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace meshnet {

SliceCache::SliceCache(LayerRange layers, std::vector<LayerCache> caches)
    : layers_(layers), caches_(std::move(caches)) {
  if (static_cast<int64_t>(caches_.size()) != layers_.size()) {
    throw std::invalid_argument("layers " + to_string(layers_) + ": expected " +
                                std::to_string(layers_.size()) + " caches, got " +
                                std::to_string(caches_.size()));
  }
}

LayerCache& SliceCache::at(int64_t layer) {
  if (!layers_.contains(layer)) {
    throw std::out_of_range("layer " + std::to_string(layer) +
                            " has no state here: expected one of " + to_string(layers_));
  }
  return caches_[static_cast<std::size_t>(layer - layers_.first)];
}

bool SliceCache::truncate(int64_t length) {
  if (length < 0 || length > length_) {
    throw std::invalid_argument("truncate: expected 0 to " + std::to_string(length_) +
                                " tokens, got " + std::to_string(length));
  }
  const bool possible = std::all_of(caches_.begin(), caches_.end(), [&](const LayerCache& cache) {
    return can_truncate(cache, length_, length);
  });
  if (!possible) return false;
  for (LayerCache& cache : caches_) meshnet::truncate(cache, length);
  length_ = length;
  return true;
}

int64_t SliceCache::nbytes() const {
  int64_t total = 0;
  for (const LayerCache& cache : caches_) total += meshnet::nbytes(cache);
  return total;
}

}  // namespace meshnet
