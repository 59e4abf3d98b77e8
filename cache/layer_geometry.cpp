#include "cache/layer_geometry.h"

#include <c10/core/ScalarType.h>

#include "cache/kv_cache.h"

namespace meshnet {
namespace {

int64_t size_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

/// Key and value of one token.
template <typename Geometry>
int64_t bytes_of_token(const Geometry& geometry, at::ScalarType dtype) {
  return 2 * geometry.num_key_value_heads * geometry.head_dim * size_of(dtype);
}

int64_t bytes_of(const RecurrentGeometry& geometry, at::ScalarType dtype) {
  const int64_t conv_state = geometry.conv_dim * (geometry.conv_kernel_size - 1);
  const int64_t delta_state = geometry.num_v_heads * geometry.head_k_dim * geometry.head_v_dim;
  return conv_state * size_of(dtype) + delta_state * size_of(at::kFloat);
}

}  // namespace

int64_t nbytes(const LayerGeometry& geometry, at::ScalarType dtype, int64_t tokens) {
  if (const auto* full = std::get_if<KvGeometry>(&geometry)) {
    return KvCache::capacity(tokens) * bytes_of_token(*full, dtype);
  }
  if (const auto* sliding = std::get_if<SlidingKvGeometry>(&geometry)) {
    return SlidingKvCache::capacity(sliding->sliding_window, tokens) *
           bytes_of_token(*sliding, dtype);
  }
  return bytes_of(std::get<RecurrentGeometry>(geometry), dtype);
}

int64_t bytes_per_token(const LayerGeometry& geometry, at::ScalarType dtype) {
  const auto* full = std::get_if<KvGeometry>(&geometry);
  return full ? bytes_of_token(*full, dtype) : 0;
}

int64_t fixed_bytes(const LayerGeometry& geometry, at::ScalarType dtype) {
  if (std::holds_alternative<KvGeometry>(geometry)) return 0;
  if (const auto* sliding = std::get_if<SlidingKvGeometry>(&geometry)) {
    return SlidingKvCache::max_capacity(sliding->sliding_window) * bytes_of_token(*sliding, dtype);
  }
  return bytes_of(std::get<RecurrentGeometry>(geometry), dtype);
}

}  // namespace meshnet
