#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/config.h"
#include "models/layers/linear.h"

namespace meshnet {

/// hidden_act (hidden_activation) of config.json.
enum class Activation { kSilu, kGeluTanh };

/// The gated MLP: down_proj(activation(gate_proj(x)) * up_proj(x)).
struct Mlp {
  Linear gate_up_proj;  ///< [2 * intermediate_size, hidden_size]: gate_proj, then up_proj
  Linear down_proj;     ///< [hidden_size, intermediate_size]
  Activation activation = Activation::kSilu;

  /// x [tokens, hidden_size] → the same shape.
  at::Tensor forward(const at::Tensor& x) const;
};

/// `weights` stands at "mlp".
Mlp load_mlp(const Weights& weights,
             int64_t hidden_size,
             int64_t intermediate_size,
             bool bias = false,
             Activation activation = Activation::kSilu);

/// Throws std::runtime_error where config.json names another hidden_act than silu.
void require_silu(const ModelConfig& config);

}  // namespace meshnet
