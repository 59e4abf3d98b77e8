#pragma once

#include <ATen/core/Tensor.h>

/// bfloat16 on processors with AVX-512 BF16. A decode step is bound by memory and made of many
/// small operations; LibTorch's way to each (choosing, packing, a pass for every rounding) takes
/// longer than the reading. Sums are float32. The twins are LibTorch's operations, one by one.
namespace meshnet {

/// Whether `x` [rows, size] or [rows, heads, size] is one for these kernels: bfloat16, its last
/// dimension contiguous and a multiple of 32, on a CPU that has the instructions.
bool takes_bf16_kernels(const at::Tensor& x);

/// x [1, in_features], weight [out_features, in_features], bias [out_features] or undefined →
/// [1, out_features]. The twin is at::linear.
at::Tensor linear_row(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// x [rows, size] or [rows, heads, size], weight [size] → the same shape, contiguous. Rounds where
/// its twin, RmsNorm::forward, does; `zero_centred` as there.
at::Tensor rms_norm_bf16(const at::Tensor& x,
                         const at::Tensor& weight,
                         double eps,
                         bool zero_centred);

/// Rotates states [tokens, heads, rotary_dim] in place, perhaps a view of heads that are wider; cos
/// and sin [tokens, rotary_dim], contiguous, rotary_dim a multiple of 32. Rounds where its twin,
/// apply_rotary_pos_emb in rope.h, does.
void rotate_bf16(const at::Tensor& states, const at::Tensor& cos, const at::Tensor& sin);

/// Whether query [rows, num_attention_heads, head_dim] is one row with a head_dim of attend_row:
/// 32, 64, 96, 128 or 256.
bool takes_attend_row(const at::Tensor& query);

/// query [1, num_attention_heads, head_dim], key and value [num_key_value_heads, length, head_dim],
/// each with its last dimension contiguous → [1, num_attention_heads * head_dim]. The twin is
/// causal_attention in ops.h.
at::Tensor attend_row(const at::Tensor& query,
                      const at::Tensor& key,
                      const at::Tensor& value,
                      double scaling);

}  // namespace meshnet
