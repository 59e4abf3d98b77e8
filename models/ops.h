#pragma once

#include <ATen/core/Tensor.h>

/// Arithmetic that the architectures share, as free functions.
namespace meshnet {

/// Llama's norm: normalise in float32, cast back, then × weight. hidden_states [tokens, size],
/// weight [size] → the same shape and dtype.
at::Tensor rms_norm(const at::Tensor& hidden_states, const at::Tensor& weight, double eps);

/// Attention of one sequence's newest rows over all it has seen; query heads share key/value heads
/// in groups. query [rows, num_attention_heads, head_dim], key and value [num_key_value_heads, past
/// + rows, head_dim] → [rows, num_attention_heads * head_dim]. Row i sees the keys 0 … past + i.
at::Tensor causal_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            double scaling);

}  // namespace meshnet
