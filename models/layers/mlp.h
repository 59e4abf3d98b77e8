#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/layers/linear.h"

namespace meshnet {

/// The gated MLP: down_proj(silu(gate_proj(x)) * up_proj(x)).
struct Mlp {
  Linear gate_up_proj;  ///< [2 * intermediate_size, hidden_size]: gate_proj, then up_proj
  Linear down_proj;     ///< [hidden_size, intermediate_size]

  /// x [tokens, hidden_size] → the same shape.
  at::Tensor forward(const at::Tensor& x) const;
};

Mlp load_mlp(const Weights& weights, int64_t hidden_size, int64_t intermediate_size, bool bias);

}  // namespace meshnet
