// Qwen3: transformers/models/qwen3/modeling_qwen3.py, names kept. Queries and keys are normalised
// head by head.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/layer_types.h"
#include "models/layers/pre_norm_block.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

std::unique_ptr<Block> make_block(const ModelConfig& config,
                                  const Weights& weights,
                                  int64_t layer) {
  const bool bias = read_attention_bias(config);
  return make_dense_block(
      config, weights, layer, {.qkv_bias = bias, .o_bias = bias, .qk_norm = true});
}

}  // namespace

extern const Architecture kQwen3;
constinit const Architecture kQwen3{
    .model_type = "qwen3",
    .layer_type = windowed_layer_type,
    .default_head_dim = 128,
    .extras =
        [](const ModelConfig& config) {
          require_silu(config);
          return nlohmann::json{{"attention_bias", read_attention_bias(config)}};
        },
    .layer_geometry = attention_geometry,
    .make_block = make_block};

}  // namespace meshnet
