// Qwen3-MoE: transformers/models/qwen3_moe/modeling_qwen3_moe.py, names kept. Qwen3 with a mixture
// of experts in most layers.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/layers/pre_norm_block.h"
#include "models/moe_config.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

MoeConfig read_experts(const ModelConfig& config) {
  return read_moe_config(config, /*norm_topk_prob=*/false, /*shared_expert=*/false);
}

/// All layers slide, or none.
LayerType layer_type(const ModelConfig& config, int64_t /*layer*/) {
  const JsonReader file(*config.raw, config.path.string());
  return file.boolean_or("use_sliding_window", false) ? LayerType::kSliding : LayerType::kFull;
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
      load_sparse_or_dense(config, weights, layer, read_experts(config)));
}

}  // namespace

extern const Architecture kQwen3Moe;
constinit const Architecture kQwen3Moe{
    .model_type = "qwen3_moe",
    .layer_type = layer_type,
    .extras =
        [](const ModelConfig& config) {
          require_silu(config);
          return nlohmann::json{{"attention_bias", read_attention_bias(config)},
                                {"experts", fingerprint_values(config, read_experts(config))}};
        },
    .layer_geometry = attention_geometry,
    .make_block = make_block};

}  // namespace meshnet
