#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cache/slice_cache.h"

namespace meshnet {

/// One sequence's rows in a packed batch.
struct Sequence {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t position = 0;  ///< absolute position of its first row; travels with the request, never
                         ///< inferred from state
  SliceCache* cache = nullptr;  ///< holds the `position` tokens before them; nullptr = stateless
};

/// Cosine and sine of every row's angles. rotary_dim is head_dim, or less in families that rotate
/// a part of each head.
struct RotaryEmbedding {
  at::Tensor cos;  ///< [tokens, rotary_dim], compute dtype
  at::Tensor sin;  ///< [tokens, rotary_dim], compute dtype
};

/// What all layers of one step share. One sequence is the batch of one, not another code path.
struct Step {
  std::vector<Sequence> sequences;
  RotaryEmbedding rotary;
  RotaryEmbedding sliding_rotary;  ///< of sliding_attention layers with rope parameters of their
                                   ///< own; undefined where the model has none
};

/// One decoder layer. The model folder's only virtual interface.
class Block {
 public:
  virtual ~Block() = default;
  /// hidden_states [tokens, hidden_size] → the same shape, residuals added. Takes the rows of each
  /// sequence that has a cache up in its state of `layer`, the block's own absolute number.
  virtual at::Tensor forward(const at::Tensor& hidden_states,
                             const Step& step,
                             int64_t layer) const = 0;
};

}  // namespace meshnet
