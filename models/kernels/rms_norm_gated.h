#pragma once

#include <ATen/core/Tensor.h>

/// The norm at the end of a gated delta-net layer.
namespace meshnet {

/// transformers' Qwen3NextRMSNormGated: normalise in float32, cast back, × weight, × silu(gate) in
/// float32, cast back. hidden_states [tokens, heads, size], contiguous; gate the same shape, heads
/// and size of a token contiguous; weight [size] → [tokens, heads, size].
at::Tensor rms_norm_gated(const at::Tensor& hidden_states,
                          const at::Tensor& gate,
                          const at::Tensor& weight,
                          double eps);

/// The twin, operation by operation: the reference in tests, and the path on a GPU.
at::Tensor rms_norm_gated_reference(const at::Tensor& hidden_states,
                                    const at::Tensor& gate,
                                    const at::Tensor& weight,
                                    double eps);

}  // namespace meshnet
