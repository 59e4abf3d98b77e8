#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cache/layer_geometry.h"
#include "models/block.h"
#include "models/config.h"
#include "models/layers/linear.h"

namespace meshnet {

class Weights;

/// What config.json says of a model's gated delta-net layers.
struct GatedDeltaNetConfig {
  int64_t linear_num_key_heads = 0;
  int64_t linear_num_value_heads = 0;  ///< a multiple of linear_num_key_heads
  int64_t linear_key_head_dim = 0;
  int64_t linear_value_head_dim = 0;
  int64_t linear_conv_kernel_dim = 0;

  int64_t key_dim() const { return linear_num_key_heads * linear_key_head_dim; }
  int64_t value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
  int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
};

/// Linear attention by the gated delta rule: transformers' Qwen3NextGatedDeltaNet and
/// Qwen3_5GatedDeltaNet, which differ in how a checkpoint stores the projections only.
struct GatedDeltaNet {
  GatedDeltaNetConfig config;
  double rms_norm_eps;
  Linear in_proj;  ///< [conv_dim + value_dim + 2 * linear_num_value_heads, hidden_size]: q, k, v,
                   ///< z, b, a, each head by head
  at::Tensor conv1d;   ///< [linear_conv_kernel_dim, conv_dim]
  at::Tensor dt_bias;  ///< [linear_num_value_heads], float32
  at::Tensor decay;    ///< [linear_num_value_heads], float32: -exp(A_log)
  at::Tensor norm;     ///< [linear_value_head_dim]; plain, not 1 + weight
  Linear out_proj;     ///< [hidden_size, value_dim]

  /// x [tokens, hidden_size] → the same shape. The sequences' RecurrentCache of `layer` goes on.
  at::Tensor forward(const at::Tensor& x, const Step& step, int64_t layer) const;
};

/// `weights` stands at "linear_attn". in_proj_qkvz and in_proj_ba are stored by key head, each with
/// its q, k, v and z, or b and a.
GatedDeltaNet load_qwen3_next_gated_delta_net(const Weights& weights,
                                              const ModelConfig& config,
                                              const GatedDeltaNetConfig& linear);

/// The same for in_proj_qkv, in_proj_z, in_proj_b and in_proj_a.
GatedDeltaNet load_qwen3_5_gated_delta_net(const Weights& weights,
                                           const ModelConfig& config,
                                           const GatedDeltaNetConfig& linear);

/// The state that GatedDeltaNet keeps.
LayerGeometry gated_delta_net_geometry(const GatedDeltaNetConfig& linear);

}  // namespace meshnet
