#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cache/layer_geometry.h"

namespace meshnet {

/// Keys and values of one layer, each a view [num_key_value_heads, length, head_dim] whose last two
/// dimensions lie contiguous. Valid until the cache's next change.
struct KeyValue {
  at::Tensor key;
  at::Tensor value;
};

/// Keys and values of one full-attention layer for one sequence, in a buffer grown in steps.
class KvCache {
 public:
  static constexpr int64_t kStep = 256;  ///< tokens

  KvCache(const KvGeometry& geometry, at::ScalarType dtype, at::Device device);

  /// Tokens that there is room for once `tokens` have been held: the next multiple of kStep.
  static int64_t capacity(int64_t tokens) { return (tokens + kStep - 1) / kStep * kStep; }

  /// Makes room for `rows` more tokens and counts them as held. Views of all that is held; the
  /// last `rows` are the caller's to fill. Out of memory (c10::Error) changes nothing.
  KeyValue extend(int64_t rows);
  /// extend(), filled with key and value [rows, num_key_value_heads, head_dim].
  KeyValue append(const at::Tensor& key, const at::Tensor& value);

  /// Rolls back to `length` tokens. The memory stays. Throws std::invalid_argument for less than 0
  /// or more than are held.
  void truncate(int64_t length);

  int64_t length() const { return length_; }  ///< tokens
  int64_t nbytes() const { return static_cast<int64_t>(buffer_.nbytes()); }

 private:
  at::Tensor buffer_;  ///< [2, num_key_value_heads, capacity, head_dim]: keys, then values
  int64_t length_ = 0;
};

/// Keys and values of the window of one sliding-attention layer, in order, in a buffer that is
/// moved to its front when it is full.
class SlidingKvCache {
 public:
  /// Throws std::invalid_argument for a window below 1.
  SlidingKvCache(const SlidingKvGeometry& geometry, at::ScalarType dtype, at::Device device);

  /// Tokens that there is room for once `tokens` have been seen, in chunks of whatever size: as in
  /// KvCache, but at most max_capacity().
  static int64_t capacity(int64_t sliding_window, int64_t tokens);
  static int64_t max_capacity(int64_t sliding_window) {
    return sliding_window - 1 + KvCache::kStep;
  }

  /// key and value [rows, num_key_value_heads, head_dim] behind what is held → all that the new
  /// rows may see, in order: the window of the oldest new row to the newest row, which is
  /// min(length, sliding_window - 1) held tokens and the new ones. Out of memory (c10::Error)
  /// changes nothing that counts: the lengths and the tokens held stay.
  KeyValue append(const at::Tensor& key, const at::Tensor& value);

  /// Whether all that the window of the token after `length` needs is still here.
  bool can_truncate(int64_t length) const;
  /// Rolls back to `length` tokens; false, and nothing changed, when a token that the window of the
  /// next one needs is gone. The memory stays. Throws std::invalid_argument for less than 0 or more
  /// than length().
  bool truncate(int64_t length);

  int64_t length() const { return length_; }  ///< tokens seen, not tokens held
  int64_t nbytes() const { return static_cast<int64_t>(buffer_.nbytes()); }

 private:
  void grow(int64_t capacity);
  /// Moves the newest `count` tokens to the front and forgets the others.
  void keep_newest(int64_t count);
  /// For more rows than there is room for behind what they see: only the tail is stored.
  KeyValue append_past_capacity(const at::Tensor& key, const at::Tensor& value);

  int64_t sliding_window_;
  at::Tensor buffer_;  ///< [2, num_key_value_heads, capacity, head_dim]
  int64_t held_ = 0;   ///< tokens in the buffer, the newest `held_` of `length_`
  int64_t length_ = 0;
};

}  // namespace meshnet
