// Qwen3: transformers/models/qwen3/modeling_qwen3.py, names kept. Queries and keys are normalised
// head by head.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/layer_types.h"
#include "models/layers/pre_norm_block.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

bool read_attention_bias(const ModelConfig& config) {
  return JsonReader(*config.raw, config.path.string()).boolean_or("attention_bias", false);
}

std::unique_ptr<Block> make_block(const ModelConfig& config,
                                  const Weights& weights,
                                  int64_t layer) {
  const bool bias = read_attention_bias(config);
  return std::make_unique<PreNormBlock>(
      config,
      weights,
      load_attention(weights.at("self_attn"),
                     config,
                     layer,
                     {.qkv_bias = bias, .o_bias = bias, .qk_norm = true}),
      load_mlp(weights.at("mlp"), config.hidden_size, config.intermediate_size));
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
