#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshnet {

/// State of one gated delta-net layer for one sequence. Zero before the first token. A step of the
/// layer that owns it replaces conv_state and writes to delta_state.
struct RecurrentCache {
  at::Tensor conv_state;   ///< [conv_dim, conv_kernel_size - 1], the newest input last, zeros on
                           ///< the left before there are enough
  at::Tensor delta_state;  ///< [num_v_heads, head_k_dim, head_v_dim], float32

  int64_t nbytes() const {
    return static_cast<int64_t>(conv_state.nbytes() + delta_state.nbytes());
  }
};

}  // namespace meshnet
