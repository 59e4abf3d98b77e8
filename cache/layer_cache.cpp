#include "cache/layer_cache.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

namespace meshnet {
namespace {

RecurrentCache make_recurrent_cache(const RecurrentGeometry& geometry,
                                    at::ScalarType dtype,
                                    at::Device device) {
  const auto options = at::TensorOptions().device(device);
  return {at::zeros({geometry.conv_dim, geometry.conv_kernel_size - 1}, options.dtype(dtype)),
          at::zeros({geometry.num_v_heads, geometry.head_k_dim, geometry.head_v_dim},
                    options.dtype(at::kFloat))};
}

}  // namespace

LayerCache make_layer_cache(const LayerGeometry& geometry,
                            at::ScalarType dtype,
                            at::Device device) {
  if (const auto* full = std::get_if<KvGeometry>(&geometry)) {
    return KvCache(*full, dtype, device);
  }
  if (const auto* sliding = std::get_if<SlidingKvGeometry>(&geometry)) {
    return SlidingKvCache(*sliding, dtype, device);
  }
  return make_recurrent_cache(std::get<RecurrentGeometry>(geometry), dtype, device);
}

int64_t nbytes(const LayerCache& cache) {
  return std::visit([](const auto& state) { return state.nbytes(); }, cache);
}

bool can_truncate(const LayerCache& cache, int64_t current, int64_t length) {
  if (const auto* full = std::get_if<KvCache>(&cache)) return length <= full->length();
  if (const auto* sliding = std::get_if<SlidingKvCache>(&cache)) {
    return length <= sliding->length() && sliding->can_truncate(length);
  }
  return length == current || length == 0;
}

void truncate(LayerCache& cache, int64_t length) {
  if (auto* full = std::get_if<KvCache>(&cache)) {
    full->truncate(length);
  } else if (auto* sliding = std::get_if<SlidingKvCache>(&cache)) {
    sliding->truncate(length);
  } else if (length == 0) {
    // Tensors of a step were made in inference mode and can be written only in it.
    const c10::InferenceMode inference;
    auto& recurrent = std::get<RecurrentCache>(cache);
    recurrent.conv_state.zero_();
    recurrent.delta_state.zero_();
  }
}

}  // namespace meshnet
