#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "models/kernels/silu_and_mul.h"

namespace meshnet {
namespace {

constexpr int kThreads = 256;

// One block per token (grid.x, so that any number of tokens fits), its threads side by side along
// `intermediate`: neighbouring threads touch neighbouring elements in all three streams.
template <typename T>
__global__ void silu_and_mul_kernel(const T* __restrict__ gate_up,  // [tokens, 2 * intermediate]
                                    T* __restrict__ out,            // [tokens, intermediate]
                                    int64_t intermediate) {
  using Float = at::opmath_type<T>;
  const int64_t token = blockIdx.x;
  const T* gate = gate_up + token * 2 * intermediate;
  const T* up = gate + intermediate;
  for (int64_t i = threadIdx.x; i < intermediate; i += blockDim.x) {
    const Float x = static_cast<Float>(gate[i]);
    // Rounded to T between the two steps, as the twin's two operations do.
    const T activated = static_cast<T>(x / (Float{1} + std::exp(-x)));
    out[token * intermediate + i] =
        static_cast<T>(static_cast<Float>(activated) * static_cast<Float>(up[i]));
  }
}

}  // namespace

at::Tensor silu_and_mul_cuda(const at::Tensor& gate_up) {
  TORCH_CHECK(gate_up.is_cuda() && gate_up.is_contiguous() && gate_up.dim() == 2 &&
                  gate_up.size(1) % 2 == 0,
              "silu_and_mul: expected [tokens, 2 * intermediate], contiguous on a GPU, got ",
              gate_up.sizes());
  const int64_t tokens = gate_up.size(0);
  const int64_t intermediate = gate_up.size(1) / 2;
  at::Tensor out = at::empty({tokens, intermediate}, gate_up.options());
  if (out.numel() == 0) return out;

  const c10::cuda::CUDAGuard guard(gate_up.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, gate_up.scalar_type(), "silu_and_mul", [&] {
        silu_and_mul_kernel<scalar_t><<<static_cast<unsigned>(tokens), kThreads, 0, stream>>>(
            gate_up.const_data_ptr<scalar_t>(), out.mutable_data_ptr<scalar_t>(), intermediate);
      });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

}  // namespace meshnet
