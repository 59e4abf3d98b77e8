#pragma once

#include <cstdint>
#include <vector>

#include "cache/layer_cache.h"
#include "cache/layer_range.h"

namespace meshnet {

/// The state of one session on one node: one cache for each layer owned and started in its route,
/// addressed by absolute layer.
class SliceCache {
 public:
  /// Throws std::invalid_argument unless there is one cache for each layer.
  SliceCache(LayerRange layers, std::vector<LayerCache> caches);

  LayerRange layers() const { return layers_; }
  /// Throws std::out_of_range naming the layers there are.
  LayerCache& at(int64_t layer);

  /// Tokens held.
  int64_t length() const { return length_; }
  /// Counts tokens that every layer's state has taken up.
  void advance(int64_t tokens) { length_ += tokens; }
  /// Rolls every layer back to `length` tokens; false, and nothing changed, when one cannot. Throws
  /// std::invalid_argument for less than 0 or more than length().
  bool truncate(int64_t length);

  int64_t nbytes() const;

 private:
  LayerRange layers_;
  std::vector<LayerCache> caches_;
  int64_t length_ = 0;
};

}  // namespace meshnet
