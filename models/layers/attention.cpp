#include "models/layers/attention.h"

#include <ATen/ops/cat.h>

#include <cmath>
#include <variant>
#include <vector>

#include "models/ops.h"
#include "models/rope.h"
#include "models/weights.h"

namespace meshnet {

at::Tensor Attention::forward(const at::Tensor& x, const Step& step, int64_t layer) const {
  const int64_t rotated_heads = num_attention_heads + num_key_value_heads;

  // 1. Project: per token its query heads, then its key heads, then its value heads.
  const at::Tensor qkv =  // [tokens, num_attention_heads + 2 * num_key_value_heads, head_dim]
      qkv_proj.forward(x).view({x.size(0), rotated_heads + num_key_value_heads, head_dim});

  // 2. Rotate queries and keys together, by each row's own position.
  const at::Tensor qk = rotate_heads(qkv.narrow(1, 0, rotated_heads), step.rotary);
  const at::Tensor query = qk.narrow(1, 0, num_attention_heads);
  const at::Tensor key = qk.narrow(1, num_attention_heads, num_key_value_heads);
  const at::Tensor value = qkv.narrow(1, rotated_heads, num_key_value_heads);

  // 3. Attend, sequence by sequence: each sees its own rows, and those of its state, only.
  const double scaling = 1.0 / std::sqrt(static_cast<double>(head_dim));
  std::vector<at::Tensor> attn_output;  // each [rows, num_attention_heads * head_dim]
  attn_output.reserve(step.sequences.size());
  for (const Sequence& sequence : step.sequences) {
    const auto own = [&](const at::Tensor& rows) {
      return rows.narrow(0, sequence.first_row, sequence.rows);
    };
    const KeyValue seen =
        sequence.cache != nullptr
            ? std::get<KvCache>(sequence.cache->at(layer)).append(own(key), own(value))
            : KeyValue{own(key).transpose(0, 1), own(value).transpose(0, 1)};
    attn_output.push_back(causal_attention(own(query), seen.key, seen.value, scaling));
  }

  // 4. Back to hidden_size, all rows at once.
  return o_proj.forward(attn_output.size() == 1 ? attn_output[0] : at::cat(attn_output));
}

Attention load_attention(const Weights& weights,
                         const ModelConfig& config,
                         bool qkv_bias,
                         bool o_bias) {
  const int64_t q_size = config.num_attention_heads * config.head_dim;
  const int64_t kv_size = config.num_key_value_heads * config.head_dim;
  return {config.num_attention_heads,
          config.num_key_value_heads,
          config.head_dim,
          load_linear(weights,
                      config.hidden_size,
                      {{"q_proj", q_size}, {"k_proj", kv_size}, {"v_proj", kv_size}},
                      qkv_bias),
          load_linear(weights, q_size, {{"o_proj", config.hidden_size}}, o_bias)};
}

LayerGeometry attention_geometry(const ModelConfig& config) {
  return KvGeometry{config.num_key_value_heads, config.head_dim};
}

}  // namespace meshnet
