// Qwen2 and Qwen2.5: transformers/models/qwen2/modeling_qwen2.py, names kept. A Llama whose q, k
// and v projections always have a bias, and whose upper layers may slide.

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
  return make_dense_block(config, weights, layer, {.qkv_bias = true});
}

}  // namespace

extern const Architecture kQwen2;
constinit const Architecture kQwen2{.model_type = "qwen2",
                                    .layer_type = windowed_layer_type,
                                    .extras =
                                        [](const ModelConfig& config) {
                                          require_silu(config);
                                          return nlohmann::json::object();
                                        },
                                    .layer_geometry = attention_geometry,
                                    .make_block = make_block};

}  // namespace meshnet
