// Qwen3-Next: transformers/models/qwen3_next/modeling_qwen3_next.py, names kept. Gated delta-net
// layers with gated full attention in every fourth, a mixture of experts with a shared one in most.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/hybrid.h"
#include "models/layer_types.h"
#include "models/moe_config.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

MoeConfig read_experts(const ModelConfig& config) {
  return read_moe_config(config, /*norm_topk_prob=*/true, /*shared_expert=*/true);
}

std::unique_ptr<Block> make_block(const ModelConfig& config,
                                  const Weights& weights,
                                  int64_t layer) {
  return std::make_unique<PreNormBlock>(
      config,
      weights,
      load_hybrid_mixer(config, weights, layer, load_qwen3_next_gated_delta_net),
      load_sparse_or_dense(config, weights, layer, read_experts(config)),
      /*zero_centred_norm=*/true);
}

}  // namespace

extern const Architecture kQwen3Next;
constinit const Architecture kQwen3Next{.model_type = "qwen3_next",
                                        .layer_type = hybrid_layer_type,
                                        .rope_defaults = {.partial_rotary_factor = 0.25},
                                        .default_head_dim = 256,
                                        .zero_centred_norm = true,
                                        .extras =
                                            [](const ModelConfig& config) {
                                              nlohmann::json extras = hybrid_extras(config);
                                              extras["experts"] =
                                                  fingerprint_values(config, read_experts(config));
                                              return extras;
                                            },
                                        .layer_geometry = hybrid_geometry,
                                        .make_block = make_block};

}  // namespace meshnet
