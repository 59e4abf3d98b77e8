#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstdint>

#include "models/kernels/gated_delta.h"
#include "models/kernels/simd.h"

/// What gated_delta_chunks.cpp and gated_delta_step.cpp share.
namespace meshnet {

/// The arguments of the rule by pointer; strides are numbers from token to token.
template <typename T>
struct DeltaOperands {
  const T* query;
  const T* key;
  const T* value;
  const float* g;
  const float* beta;
  float* state;
  T* out;
  int64_t query_stride, key_stride, value_stride;
  int64_t tokens, num_k_heads, num_v_heads, head_k_dim, head_v_dim;

  int64_t group() const { return num_v_heads / num_k_heads; }
  float* state_of(int64_t head) const { return state + head * head_k_dim * head_v_dim; }
};

template <typename T>
DeltaOperands<T> delta_operands(const at::Tensor& query,
                                const at::Tensor& key,
                                const at::Tensor& value,
                                const at::Tensor& g,
                                const at::Tensor& beta,
                                const at::Tensor& state,
                                const at::Tensor& out) {
  return {query.const_data_ptr<T>(),
          key.const_data_ptr<T>(),
          value.const_data_ptr<T>(),
          g.const_data_ptr<float>(),
          beta.const_data_ptr<float>(),
          state.mutable_data_ptr<float>(),
          out.mutable_data_ptr<T>(),
          query.stride(0),
          key.stride(0),
          value.stride(0),
          value.size(0),
          query.size(1),
          value.size(1),
          query.size(2),
          value.size(2)};
}

/// run(operands) for the dtype of `value`, float32 or bfloat16 → the output that it fills.
template <typename Run>
at::Tensor run_delta(const at::Tensor& query,
                     const at::Tensor& key,
                     const at::Tensor& value,
                     const at::Tensor& g,
                     const at::Tensor& beta,
                     const at::Tensor& state,
                     const Run& run) {
  at::Tensor out = at::empty(value.sizes(), value.options());
  if (value.scalar_type() == at::kBFloat16) {
    run(delta_operands<c10::BFloat16>(query, key, value, g, beta, state, out));
  } else {
    run(delta_operands<float>(query, key, value, g, beta, state, out));
  }
  return out;
}

/// head_k_dim and, in a step, head_v_dim are padded with zeros to a multiple: whole vectors.
constexpr int64_t kDeltaPadding = 16;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// a · b, of a padded size.
template <int kBytes>
MESHNET_INLINE float dot(const float* a, const float* b, int64_t size) {
  simd::Floats<kBytes> total = {};
  for (int64_t i = 0; i < size; i += simd::Vector<kBytes>::kLanes) {
    total += simd::load<kBytes>(a + i) * simd::load<kBytes>(b + i);
  }
  return simd::sum<kBytes>(total);
}

/// The l2norm of transformers, × scale. What pads `to` is 0 already.
template <int kBytes, typename T>
MESHNET_INLINE void normalise(const T* from, float* to, int64_t size, float scale) {
  simd::convert<kBytes>(from, to, size);
  const int64_t padded = round_up(size, kDeltaPadding);
  const float factor = scale / std::sqrt(dot<kBytes>(to, to, padded) + kL2NormEps);
  for (int64_t i = 0; i < padded; i += simd::Vector<kBytes>::kLanes) {
    simd::store<kBytes>(to + i, simd::load<kBytes>(to + i) * factor);
  }
}

}  // namespace meshnet
