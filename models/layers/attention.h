#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/block.h"
#include "models/config.h"
#include "models/layers/linear.h"

namespace meshnet {

class Weights;

/// Grouped-query attention with rotary positions over everything a sequence has seen.
struct Attention {
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  Linear qkv_proj;  ///< [(num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size]
  Linear o_proj;    ///< [hidden_size, num_attention_heads * head_dim]

  /// x [tokens, hidden_size] → the same shape. Keys and values go to the sequences' KvCache of
  /// `layer`.
  at::Tensor forward(const at::Tensor& x, const Step& step, int64_t layer) const;
};

/// `weights` stands at "self_attn".
Attention load_attention(const Weights& weights,
                         const ModelConfig& config,
                         bool qkv_bias,
                         bool o_bias);

/// The state that Attention keeps.
LayerGeometry attention_geometry(const ModelConfig& config);

}  // namespace meshnet
