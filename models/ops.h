#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Arithmetic that the architectures share, as free functions.
namespace meshnet {

/// Attention of one sequence's newest rows over what it has seen; query heads share key/value heads
/// in groups. query [rows, num_attention_heads, head_dim], key and value [num_key_value_heads, past
/// + rows, head_dim] → [rows, num_attention_heads * head_dim]. Row i sees the keys 0 … past + i, or
/// with a sliding_window above 0 only the last so many of them.
at::Tensor causal_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            double scaling,
                            int64_t sliding_window);

}  // namespace meshnet
