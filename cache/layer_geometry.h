#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <variant>

namespace meshnet {

/// Keys and values of every token: full attention.
struct KvGeometry {
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  bool operator==(const KvGeometry&) const = default;
};

/// Keys and values of the last `sliding_window` tokens, the newest among them.
struct SlidingKvGeometry {
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t sliding_window = 0;
  bool operator==(const SlidingKvGeometry&) const = default;
};

/// Fixed-size state of a gated delta-net layer.
struct RecurrentGeometry {
  int64_t conv_dim = 0;          ///< channels of the convolution
  int64_t conv_kernel_size = 0;  ///< the state keeps the last conv_kernel_size - 1 inputs
  int64_t num_v_heads = 0;
  int64_t head_k_dim = 0;
  int64_t head_v_dim = 0;
  bool operator==(const RecurrentGeometry&) const = default;
};

/// The kind and size of the state that one layer keeps for one session.
using LayerGeometry = std::variant<KvGeometry, SlidingKvGeometry, RecurrentGeometry>;

/// Bytes a layer's state takes once it has seen `tokens` tokens, exactly as LayerCache allocates
/// them. K/V and conv state are held in `dtype`, delta state in float32.
int64_t nbytes(const LayerGeometry& geometry, at::ScalarType dtype, int64_t tokens);

/// What each token adds for good; 0 for sliding-window and recurrent state.
int64_t bytes_per_token(const LayerGeometry& geometry, at::ScalarType dtype);
/// The most that sliding-window and recurrent state ever take; 0 for full attention.
int64_t fixed_bytes(const LayerGeometry& geometry, at::ScalarType dtype);

}  // namespace meshnet
