#pragma once

#include <ATen/core/Tensor.h>

namespace meshnet {

/// Whether query [rows, num_attention_heads, head_dim] is one for attend_rows: one for the kernels
/// of bf16_cpu.h with a head_dim of 32, 64, 96, 128 or 256.
bool takes_attend_rows(const at::Tensor& query);

/// Attention of many rows at once, on processors with AVX-512 BF16: query [rows,
/// num_attention_heads, head_dim], key and value [num_key_value_heads, past + rows, head_dim], each
/// with its last dimension contiguous, scaling above 0 → [rows, num_attention_heads * head_dim].
/// Row i sees the keys 0 … past + i, with a sliding_window above 0 only the last sliding_window of
/// them. The twin is causal_attention in ops.h; as in LibTorch's own kernel, scores and sums are
/// float32 and the weights of the values bfloat16. Finite values given, a row's result depends, bit
/// for bit, neither on the rows beside it nor on the number of threads.
at::Tensor attend_rows(const at::Tensor& query,
                       const at::Tensor& key,
                       const at::Tensor& value,
                       double scaling,
                       int64_t sliding_window);

}  // namespace meshnet
