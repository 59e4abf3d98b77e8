// Qwen3.5 and Qwen3.6, their text models, dense and with experts: transformers/models/qwen3_5 and
// qwen3_5_moe, names kept. Gated delta-net layers with gated full attention in every fourth.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/hybrid.h"
#include "models/layer_types.h"
#include "models/moe_config.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

/// Every layer has experts, and their weights always sum to 1.
MoeConfig read_experts(const ModelConfig& config) {
  MoeConfig moe = read_moe_config(config, /*norm_topk_prob=*/true, /*shared_expert=*/true);
  moe.norm_topk_prob = true;
  return moe;
}

std::unique_ptr<Block> make_block(const ModelConfig& config,
                                  const Weights& weights,
                                  int64_t layer,
                                  FeedForward feed_forward) {
  return std::make_unique<PreNormBlock>(
      config,
      weights,
      load_hybrid_mixer(config, weights, layer, load_qwen3_5_gated_delta_net),
      std::move(feed_forward),
      /*zero_centred_norm=*/true);
}

}  // namespace

extern const Architecture kQwen35Text;
constinit const Architecture kQwen35Text{
    .model_type = "qwen3_5_text",
    .layer_type = hybrid_layer_type,
    .rope_defaults = {.partial_rotary_factor = 0.25},
    .default_head_dim = 256,
    .zero_centred_norm = true,
    .extras = hybrid_extras,
    .layer_geometry = hybrid_geometry,
    .make_block = [](const ModelConfig& config, const Weights& weights, int64_t layer) {
      return make_block(config,
                        weights,
                        layer,
                        load_mlp(weights.at("mlp"), config.hidden_size, config.intermediate_size));
    }};

extern const Architecture kQwen35MoeText;
constinit const Architecture kQwen35MoeText{
    .model_type = "qwen3_5_moe_text",
    .layer_type = hybrid_layer_type,
    .rope_defaults = {.partial_rotary_factor = 0.25},
    .default_head_dim = 256,
    .always_experts = true,
    .zero_centred_norm = true,
    .extras =
        [](const ModelConfig& config) {
          nlohmann::json extras = hybrid_extras(config);
          extras["experts"] = fingerprint_values(config, read_experts(config));
          return extras;
        },
    .layer_geometry = hybrid_geometry,
    .make_block =
        [](const ModelConfig& config, const Weights& weights, int64_t layer) {
          return make_block(
              config, weights, layer, load_moe(weights.at("mlp"), read_experts(config)));
        }};

}  // namespace meshnet
