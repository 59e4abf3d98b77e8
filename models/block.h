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

/// What all layers of one step share. One sequence is the batch of one, not another code path.
struct Step {
  std::vector<Sequence> sequences;
  at::Tensor cos;  ///< [tokens, head_dim], compute dtype
  at::Tensor sin;  ///< [tokens, head_dim], compute dtype
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
