#pragma once

#include <ATen/core/Tensor.h>

/// The middle of a gated MLP, in one pass over memory where there is a kernel.
namespace meshnet {

/// gate_up [tokens, 2 * intermediate] → silu(gate) * up [tokens, intermediate]. Takes the kernel
/// for CUDA tensors where it was compiled, the one for bfloat16 on a CPU that has the instructions
/// (bf16_cpu.h), else their twin.
at::Tensor silu_and_mul(const at::Tensor& gate_up);

/// The twin, operation by operation: the reference in tests and the path on other CPUs.
at::Tensor silu_and_mul_reference(const at::Tensor& gate_up);

/// The kernel. gate_up lies contiguous on a GPU. Rounds where the twin does. Only with
/// MESHNET_CUDA.
at::Tensor silu_and_mul_cuda(const at::Tensor& gate_up);

/// The kernel for gate_up that takes_bf16_kernels. Rounds where the twin does; e^x may differ in
/// its last bits.
at::Tensor silu_and_mul_bf16(const at::Tensor& gate_up);

}  // namespace meshnet
