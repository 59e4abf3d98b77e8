#include "models/layers/mlp.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/kernels/silu_and_mul.h"
#include "models/weights.h"

namespace meshnet {
namespace {

/// gate_up [tokens, 2 * intermediate] → gelu(gate) * up [tokens, intermediate].
at::Tensor gelu_tanh_and_mul(const at::Tensor& gate_up) {
  const auto halves = gate_up.chunk(2, -1);
  return at::gelu(halves[0], "tanh") * halves[1];
}

}  // namespace

at::Tensor Mlp::forward(const at::Tensor& x) const {
  const at::Tensor gate_up = gate_up_proj.forward(x);
  return down_proj.forward(activation == Activation::kSilu ? silu_and_mul(gate_up)
                                                           : gelu_tanh_and_mul(gate_up));
}

Mlp load_mlp(const Weights& weights,
             int64_t hidden_size,
             int64_t intermediate_size,
             bool bias,
             Activation activation) {
  return {load_linear(weights,
                      hidden_size,
                      {{"gate_proj", intermediate_size}, {"up_proj", intermediate_size}},
                      bias),
          load_linear(weights, intermediate_size, {{"down_proj", hidden_size}}, bias),
          activation};
}

void require_silu(const ModelConfig& config) {
  const JsonReader file(*config.raw, config.path.string());
  if (file.string_or("hidden_act", "silu") != "silu") {
    file.fail("hidden_act",
              "silu (no other activation is supported for " + config.model_type + ")");
  }
}

}  // namespace meshnet
