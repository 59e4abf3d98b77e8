#pragma once

#include <ATen/core/Tensor.h>

/// The depthwise causal convolution of a gated delta-net layer, for one sequence.
namespace meshnet {

/// y_t = silu(sum over j of weight_j * x_(t - conv_kernel_size + 1 + j)), channel by channel, where
/// conv_state stands before the first token (transformers, modeling_qwen3_next.py, causal_conv1d_fn
/// and causal_conv1d_update). Rounds after the sum and after silu, as they do.
///
/// x [tokens, conv_dim], channels contiguous; weight [conv_kernel_size, conv_dim], the checkpoint's
/// transposed; conv_state [conv_dim, conv_kernel_size - 1], the newest input last, is replaced by
/// that after the last token: a tensor of its own with the channels contiguous → [tokens,
/// conv_dim], contiguous. All of one dtype.
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, at::Tensor& conv_state);

/// The twin, operation by operation: the reference in tests, and the path on a GPU.
at::Tensor causal_conv_reference(const at::Tensor& x,
                                 const at::Tensor& weight,
                                 at::Tensor& conv_state);

}  // namespace meshnet
