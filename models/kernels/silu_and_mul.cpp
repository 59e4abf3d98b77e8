#include "models/kernels/silu_and_mul.h"

#include <ATen/ATen.h>

#include "models/kernels/bf16_cpu.h"

namespace meshnet {

at::Tensor silu_and_mul(const at::Tensor& gate_up) {
#ifdef MESHNET_CUDA
  if (gate_up.is_cuda()) return silu_and_mul_cuda(gate_up);
#endif
  if (takes_bf16_kernels(gate_up)) return silu_and_mul_bf16(gate_up);
  return silu_and_mul_reference(gate_up);
}

at::Tensor silu_and_mul_reference(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

}  // namespace meshnet
