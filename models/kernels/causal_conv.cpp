#include "models/kernels/causal_conv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <vector>

#include "models/kernels/simd.h"
#include "models/kernels/worth_a_thread.h"

namespace meshnet {
namespace {

constexpr int64_t kLeastChannels = 16;

template <typename T>
struct Convolution {
  const T* x;
  const T* weight;
  const T* state;  ///< [conv_kernel_size - 1, conv_dim]
  T* y;
  int64_t x_stride;  ///< from token to token
  int64_t conv_dim, conv_kernel_size;

  /// Inputs of a token; those before the first are in the state.
  const T* row(int64_t token) const {
    return token < 0 ? state + (token + conv_kernel_size - 1) * conv_dim : x + token * x_stride;
  }

  /// One token. `taps` is room for conv_kernel_size pointers.
  template <int kBytes>
  MESHNET_INLINE static void run(const Convolution& c, int64_t token, const T** taps) {
    constexpr int64_t lanes = simd::Vector<kBytes>::kLanes;
    for (int64_t j = 0; j < c.conv_kernel_size; ++j) {
      taps[j] = c.row(token - c.conv_kernel_size + 1 + j);
    }
    T* y = c.y + token * c.conv_dim;
    for (int64_t first = 0; first < c.conv_dim; first += lanes) {
      const int64_t channel = std::min(first, c.conv_dim - lanes);  // the last ones may do twice
      simd::Floats<kBytes> sum = {};
      for (int64_t j = 0; j < c.conv_kernel_size; ++j) {
        sum += simd::load<kBytes>(c.weight + j * c.conv_dim + channel) *
               simd::load<kBytes>(taps[j] + channel);
      }
      simd::store<kBytes>(y + channel, simd::silu<kBytes>(simd::through<kBytes, T>(sum)));
    }
  }
};

template <typename T>
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, at::Tensor& conv_state) {
  const int64_t tokens = x.size(0);
  const int64_t conv_kernel_size = weight.size(0);
  const int64_t conv_dim = weight.size(1);
  const at::Tensor state = conv_state.t().contiguous();  // no copy of what came from here
  at::Tensor y = at::empty({tokens, conv_dim}, x.options());
  const Convolution<T> c{x.const_data_ptr<T>(),
                         weight.const_data_ptr<T>(),
                         state.const_data_ptr<T>(),
                         y.mutable_data_ptr<T>(),
                         x.stride(0),
                         conv_dim,
                         conv_kernel_size};
  const int64_t grain = worth_a_thread(conv_dim);
  at::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<const T*> taps(static_cast<std::size_t>(conv_kernel_size));
    for (int64_t token = begin; token < end; ++token) {
      simd::run<Convolution<T>>(c, token, taps.data());
    }
  });

  const at::Tensor newest = at::empty({conv_kernel_size - 1, conv_dim}, x.options());
  for (int64_t i = 0; i + 1 < conv_kernel_size; ++i) {
    const T* row = c.row(tokens - conv_kernel_size + 1 + i);
    std::copy_n(row, conv_dim, newest.mutable_data_ptr<T>() + i * conv_dim);
  }
  conv_state = newest.t();
  return y;
}

}  // namespace

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, at::Tensor& conv_state) {
  if (x.is_cpu() && weight.size(1) >= kLeastChannels) {
    if (x.scalar_type() == at::kBFloat16) return convolve<c10::BFloat16>(x, weight, conv_state);
    if (x.scalar_type() == at::kFloat) return convolve<float>(x, weight, conv_state);
  }
  return causal_conv_reference(x, weight, conv_state);
}

at::Tensor causal_conv_reference(const at::Tensor& x,
                                 const at::Tensor& weight,
                                 at::Tensor& conv_state) {
  const int64_t conv_dim = weight.size(1);
  const at::Tensor inputs = at::cat({conv_state, x.t()}, 1);  // [conv_dim, past + tokens]
  const at::Tensor sums = at::convolution(inputs.unsqueeze(0),
                                          weight.t().unsqueeze(1),
                                          /*bias=*/{},
                                          /*stride=*/1,
                                          /*padding=*/0,
                                          /*dilation=*/1,
                                          /*transposed=*/false,
                                          /*output_padding=*/0,
                                          /*groups=*/conv_dim);  // [1, conv_dim, tokens]
  conv_state = inputs.narrow(1, x.size(0), weight.size(0) - 1).t().contiguous().t();
  return at::silu(sums).squeeze(0).t().contiguous();
}

}  // namespace meshnet
