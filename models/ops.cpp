#include "models/ops.h"

#include <ATen/ATen.h>

#include <optional>

#include "models/kernels/bf16_cpu.h"

namespace meshnet {

at::Tensor causal_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            double scaling,
                            int64_t sliding_window) {
  const int64_t rows = query.size(0);
  const int64_t past = key.size(1) - rows;
  if (rows == 1 && sliding_window > 0 && key.size(1) > sliding_window) {
    return causal_attention(query,
                            key.narrow(1, key.size(1) - sliding_window, sliding_window),
                            value.narrow(1, key.size(1) - sliding_window, sliding_window),
                            scaling,
                            0);
  }
  const int64_t groups = query.size(1) / key.size(0);
  if (takes_attend_row(query)) return attend_row(query, key, value, scaling);
  if (rows == 1) {
    // One row sees everything: the query heads of one key/value head are rows of one product.
    const at::Tensor grouped = query.view({1, key.size(0), groups, query.size(2)});
    return at::scaled_dot_product_attention(grouped,
                                            key.unsqueeze(0),
                                            value.unsqueeze(0),
                                            /*attn_mask=*/{},
                                            /*dropout_p=*/0.0,
                                            /*is_causal=*/false,
                                            scaling)
        .reshape({1, -1});
  }
  // LibTorch's is_causal counts from the top left, which is wrong as soon as there is a past.
  std::optional<at::Tensor> mask;  // [rows, past + rows], true = seen
  const bool windowed = sliding_window > 0 && past + rows > sliding_window;
  if (past > 0 || windowed) {
    mask = at::ones({rows, past + rows}, query.options().dtype(at::kBool)).tril(past);
    if (windowed) mask = mask->triu(past - sliding_window + 1);
  }
  const at::Tensor attn_output =  // [1, num_attention_heads, rows, head_dim]
      at::scaled_dot_product_attention(query.transpose(0, 1).unsqueeze(0),
                                       key.unsqueeze(0),
                                       value.unsqueeze(0),
                                       mask,
                                       /*dropout_p=*/0.0,
                                       /*is_causal=*/!mask,
                                       scaling,
                                       /*enable_gqa=*/groups > 1);
  return attn_output.squeeze(0).transpose(0, 1).reshape({rows, -1});
}

}  // namespace meshnet
