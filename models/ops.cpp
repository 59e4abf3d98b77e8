#include "models/ops.h"

#include <ATen/ATen.h>

#include <optional>

#include "models/kernels/bf16_attention_cpu.h"
#include "models/kernels/bf16_cpu.h"

namespace meshnet {
namespace {

/// One row sees everything: the query heads of one key/value head are rows of one product.
at::Tensor attention_of_one_row(const at::Tensor& query,
                                const at::Tensor& key,
                                const at::Tensor& value,
                                double scaling) {
  const at::Tensor grouped =
      query.view({1, key.size(0), query.size(1) / key.size(0), query.size(2)});
  return at::scaled_dot_product_attention(grouped,
                                          key.unsqueeze(0),
                                          value.unsqueeze(0),
                                          /*attn_mask=*/{},
                                          /*dropout_p=*/0.0,
                                          /*is_causal=*/false,
                                          scaling)
      .reshape({1, -1});
}

at::Tensor attention_of_rows(const at::Tensor& query,
                             const at::Tensor& key,
                             const at::Tensor& value,
                             double scaling,
                             int64_t sliding_window) {
  const int64_t rows = query.size(0);
  const int64_t length = key.size(1);
  const int64_t past = length - rows;
  const bool windowed = sliding_window > 0 && sliding_window < length;
  // LibTorch's is_causal counts from the top left, which is wrong as soon as there is a past.
  const bool is_causal = past == 0 && !windowed;
  std::optional<at::Tensor> mask;  // [rows, past + rows], true = seen
  if (!is_causal) {
    mask = at::ones({rows, length}, query.options().dtype(at::kBool)).tril(past);
    if (windowed) mask = mask->triu(past - sliding_window + 1);
  }
  const at::Tensor attn_output =  // [1, num_attention_heads, rows, head_dim]
      at::scaled_dot_product_attention(query.transpose(0, 1).unsqueeze(0),
                                       key.unsqueeze(0),
                                       value.unsqueeze(0),
                                       mask,
                                       /*dropout_p=*/0.0,
                                       is_causal,
                                       scaling,
                                       /*enable_gqa=*/query.size(1) > key.size(0));
  return attn_output.squeeze(0).transpose(0, 1).reshape({rows, -1});
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            double scaling,
                            int64_t sliding_window) {
  const int64_t rows = query.size(0);
  const int64_t seen = sliding_window + rows - 1;  // by any row
  if (sliding_window > 0 && key.size(1) > seen) {
    return causal_attention(query,
                            key.narrow(1, key.size(1) - seen, seen),
                            value.narrow(1, key.size(1) - seen, seen),
                            scaling,
                            sliding_window);
  }
  if (takes_attend_row(query)) return attend_row(query, key, value, scaling);
  if (takes_attend_rows(query)) return attend_rows(query, key, value, scaling, sliding_window);
  return rows == 1 ? attention_of_one_row(query, key, value, scaling)
                   : attention_of_rows(query, key, value, scaling, sliding_window);
}

}  // namespace meshnet
