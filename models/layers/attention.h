#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/block.h"
#include "models/config.h"
#include "models/layers/linear.h"
#include "models/layers/rms_norm.h"

namespace meshnet {

class Weights;

/// Grouped-query attention with rotary positions over everything a sequence has seen, or over the
/// newest sliding_window tokens of it.
struct Attention {
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  double scaling;
  int64_t sliding_window;  ///< 0 = full attention
  bool output_gate;        ///< × sigmoid(gate) before o_proj
  Linear qkv_proj;  ///< rows of q_proj, k_proj, v_proj and, with output_gate, one gate for each of
                    ///< q_proj's: [.. * head_dim, hidden_size]
  Linear o_proj;    ///< [hidden_size, num_attention_heads * head_dim]
  RmsNorm q_norm;   ///< over head_dim; no weight = none
  RmsNorm k_norm;   ///< over head_dim; no weight = none

  /// x [tokens, hidden_size] → the same shape. Keys and values go to the sequences' state of
  /// `layer`, which is what attention_geometry says.
  at::Tensor forward(const at::Tensor& x, const Step& step, int64_t layer) const;
};

/// In what the families differ.
struct AttentionOptions {
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;
  bool zero_centred_norm = false;  ///< of q_norm and k_norm
  bool output_gate = false;        ///< in q_proj, each head's query is followed by its gate
  double scaling = 0.0;            ///< 0 = 1 / sqrt(head_dim)
};

/// attention_bias of config.json: whether q, k, v and o have one.
bool read_attention_bias(const ModelConfig& config);

/// `weights` stands at "self_attn".
Attention load_attention(const Weights& weights,
                         const ModelConfig& config,
                         int64_t layer,
                         const AttentionOptions& options = {});

/// The state that Attention keeps at an absolute layer, full or sliding.
LayerGeometry attention_geometry(const ModelConfig& config, int64_t layer);

}  // namespace meshnet
