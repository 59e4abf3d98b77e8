#include "models/kernels/rms_norm_gated.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cmath>

#include "models/kernels/simd.h"
#include "models/kernels/worth_a_thread.h"

namespace meshnet {
namespace {

template <typename T>
struct GatedNorm {
  const T* x;
  const T* gate;
  const T* weight;
  T* out;
  int64_t gate_stride;  ///< from token to token
  int64_t heads, size;
  float eps;

  /// All heads of one token.
  template <int kBytes>
  MESHNET_INLINE static void run(const GatedNorm& n, int64_t token) {
    using simd::load;
    constexpr int64_t lanes = simd::Vector<kBytes>::kLanes;
    for (int64_t head = 0; head < n.heads; ++head) {
      const T* x = n.x + (token * n.heads + head) * n.size;
      const T* gate = n.gate + token * n.gate_stride + head * n.size;
      T* out = n.out + (token * n.heads + head) * n.size;
      simd::Floats<kBytes> squares = {};
      for (int64_t i = 0; i < n.size; i += lanes) {
        const simd::Floats<kBytes> values = load<kBytes>(x + i);
        squares += values * values;
      }
      const float mean = simd::sum<kBytes>(squares) / static_cast<float>(n.size);
      const float scale = 1.0F / std::sqrt(mean + n.eps);
      for (int64_t i = 0; i < n.size; i += lanes) {
        const auto normed = simd::through<kBytes, T>(load<kBytes>(x + i) * scale);
        const auto weighted = simd::through<kBytes, T>(normed * load<kBytes>(n.weight + i));
        simd::store<kBytes>(out + i, weighted * simd::silu<kBytes>(load<kBytes>(gate + i)));
      }
    }
  }
};

template <typename T>
at::Tensor run_kernel(const at::Tensor& hidden_states,
                      const at::Tensor& gate,
                      const at::Tensor& weight,
                      double eps) {
  at::Tensor out = at::empty(hidden_states.sizes(), hidden_states.options());
  const GatedNorm<T> norm{hidden_states.const_data_ptr<T>(),
                          gate.const_data_ptr<T>(),
                          weight.const_data_ptr<T>(),
                          out.mutable_data_ptr<T>(),
                          gate.stride(0),
                          hidden_states.size(1),
                          hidden_states.size(2),
                          static_cast<float>(eps)};
  const int64_t grain = worth_a_thread(norm.heads * norm.size);
  at::parallel_for(0, hidden_states.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) simd::run<GatedNorm<T>>(norm, token);
  });
  return out;
}

}  // namespace

at::Tensor rms_norm_gated(const at::Tensor& hidden_states,
                          const at::Tensor& gate,
                          const at::Tensor& weight,
                          double eps) {
  if (hidden_states.is_cpu() && weight.size(0) % simd::kMostLanes == 0) {
    if (hidden_states.scalar_type() == at::kBFloat16) {
      return run_kernel<c10::BFloat16>(hidden_states, gate, weight, eps);
    }
    if (hidden_states.scalar_type() == at::kFloat) {
      return run_kernel<float>(hidden_states, gate, weight, eps);
    }
  }
  return rms_norm_gated_reference(hidden_states, gate, weight, eps);
}

at::Tensor rms_norm_gated_reference(const at::Tensor& hidden_states,
                                    const at::Tensor& gate,
                                    const at::Tensor& weight,
                                    double eps) {
  const at::Tensor normed = at::rms_norm(hidden_states, weight.sizes(), {}, eps) * weight;
  return (normed * at::silu(gate.to(at::kFloat))).to(hidden_states.scalar_type());
}

}  // namespace meshnet
