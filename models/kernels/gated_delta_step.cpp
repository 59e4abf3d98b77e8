#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/kernels/gated_delta_cpu.h"
#include "models/kernels/worth_a_thread.h"

namespace meshnet {
namespace {

using simd::Floats;
using simd::load;
using simd::store;

/// One token of one head, in float32 and padded.
struct Token {
  const float* query;
  const float* key;
  float* value;  ///< then the output
  float decay;
  float beta;
  float query_key;  ///< query · key
};

/// `kCount` vectors of columns of the state. What key and query read of it comes in one pass, the
/// update in another, while the state is in the cache: S^T q afterwards = decay S^T q + (k · q)
/// delta.
template <int kBytes, int kCount>
MESHNET_INLINE void step_columns(
    const Token& token, float* state, int64_t stride, int64_t column, int64_t head_k_dim) {
  constexpr int64_t lanes = simd::Vector<kBytes>::kLanes;
  Floats<kBytes> kv_mem[kCount] = {};
  Floats<kBytes> out[kCount] = {};
  for (int64_t k = 0; k < head_k_dim; ++k) {
    const float* row = state + k * stride + column;
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) {
      const Floats<kBytes> values = load<kBytes>(row + c * lanes);
      kv_mem[c] += token.key[k] * values;
      out[c] += token.query[k] * values;
    }
  }
  Floats<kBytes> delta[kCount];
#pragma GCC unroll 8
  for (int c = 0; c < kCount; ++c) {
    float* value = token.value + column + c * lanes;
    delta[c] = token.beta * (load<kBytes>(value) - token.decay * kv_mem[c]);
    store<kBytes>(value, token.decay * out[c] + token.query_key * delta[c]);
  }
  for (int64_t k = 0; k < head_k_dim; ++k) {
    float* row = state + k * stride + column;
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) {
      const Floats<kBytes> values = load<kBytes>(row + c * lanes);
      store<kBytes>(row + c * lanes, token.decay * values + token.key[k] * delta[c]);
    }
  }
}

/// One token of one v head. `memory` has room for Token's three arrays and a padded state.
template <typename T>
struct StepHead {
  template <int kBytes>
  MESHNET_INLINE static void run(const DeltaOperands<T>& s, int64_t head, float* memory) {
    constexpr int64_t lanes = simd::Vector<kBytes>::kLanes;
    constexpr int count = kBytes == 64 ? 8 : 4;  // twice as many sums: 32 registers, or 16
    const int64_t depth = round_up(s.head_k_dim, kDeltaPadding);
    const int64_t width = round_up(s.head_v_dim, kDeltaPadding);
    float* key = memory;
    float* query = key + depth;
    float* value = query + depth;
    const int64_t k_offset = head / s.group() * s.head_k_dim;
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_k_dim));
    normalise<kBytes>(s.key + k_offset, key, s.head_k_dim, 1.0F);
    normalise<kBytes>(s.query + k_offset, query, s.head_k_dim, scale);
    simd::convert<kBytes>(s.value + head * s.head_v_dim, value, s.head_v_dim);
    const Token token{
        query, key, value, std::exp(s.g[head]), s.beta[head], dot<kBytes>(query, key, depth)};

    float* state = s.state_of(head);
    if (width != s.head_v_dim) {
      state = value + width;
      for (int64_t k = 0; k < s.head_k_dim; ++k) {
        std::copy_n(s.state_of(head) + k * s.head_v_dim, s.head_v_dim, state + k * width);
      }
    }
    int64_t column = 0;
    for (; column + count * lanes <= width; column += count * lanes) {
      step_columns<kBytes, count>(token, state, width, column, s.head_k_dim);
    }
    for (; column < width; column += lanes) {
      step_columns<kBytes, 1>(token, state, width, column, s.head_k_dim);
    }
    if (width != s.head_v_dim) {
      for (int64_t k = 0; k < s.head_k_dim; ++k) {
        std::copy_n(state + k * width, s.head_v_dim, s.state_of(head) + k * s.head_v_dim);
      }
    }
    simd::convert<kBytes>(value, s.out + head * s.head_v_dim, s.head_v_dim);
  }
};

template <typename T>
void run_step(const DeltaOperands<T>& s) {
  const int64_t depth = round_up(s.head_k_dim, kDeltaPadding);
  const int64_t width = round_up(s.head_v_dim, kDeltaPadding);
  const int64_t room = 2 * depth + width + (width == s.head_v_dim ? 0 : depth * width);
  const int64_t grain = worth_a_thread(s.head_k_dim * s.head_v_dim);
  at::parallel_for(0, s.num_v_heads, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> memory(static_cast<std::size_t>(room));
    for (int64_t head = begin; head < end; ++head) {
      simd::run<StepHead<T>>(s, head, memory.data());
    }
  });
}

}  // namespace

at::Tensor gated_delta_step_cpu(const at::Tensor& query,
                                const at::Tensor& key,
                                const at::Tensor& value,
                                const at::Tensor& g,
                                const at::Tensor& beta,
                                const at::Tensor& state) {
  return run_delta(
      query, key, value, g, beta, state, [](const auto& operands) { run_step(operands); });
}

}  // namespace meshnet
