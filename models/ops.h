#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Arithmetic that the architectures share, as free functions.
namespace meshnet {

/// Attention of one sequence's newest rows over what it has seen; query heads share key/value heads
/// in groups. query [rows, num_attention_heads, head_dim], key and value [num_key_value_heads, past
/// + rows, head_dim], each with its last dimension contiguous, scaling above 0 → [rows,
/// num_attention_heads * head_dim]. Row i sees the keys 0 … past + i; with a sliding_window above 0
/// only the last sliding_window of them, so that key and value may begin where the window of row 0
/// does.
at::Tensor causal_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            double scaling,
                            int64_t sliding_window);

}  // namespace meshnet
