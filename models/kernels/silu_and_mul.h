#pragma once

#include <ATen/core/Tensor.h>

/// The middle of a gated MLP, in one pass over memory on a GPU.
namespace meshnet {

/// gate_up [tokens, 2 * intermediate] → silu(gate) * up [tokens, intermediate]. Takes the kernel
/// for CUDA tensors where it was compiled, else its twin.
at::Tensor silu_and_mul(const at::Tensor& gate_up);

/// The twin, operation by operation: the reference in tests and the path on a CPU.
at::Tensor silu_and_mul_reference(const at::Tensor& gate_up);

/// The kernel. gate_up lies contiguous on a GPU. Rounds where the twin does. Only with
/// MESHNET_CUDA.
at::Tensor silu_and_mul_cuda(const at::Tensor& gate_up);

}  // namespace meshnet
