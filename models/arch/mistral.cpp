// Mistral: transformers/models/mistral/modeling_mistral.py, names kept. A Llama whose layers all
// slide, or none.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/layers/pre_norm_block.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

/// null turns the window off; without the key it is the class's own.
LayerType layer_type(const ModelConfig& config, int64_t /*layer*/) {
  const auto window = config.raw->find("sliding_window");
  const bool off = window != config.raw->end() && window->is_null();
  return off ? LayerType::kFull : LayerType::kSliding;
}

std::unique_ptr<Block> make_block(const ModelConfig& config,
                                  const Weights& weights,
                                  int64_t layer) {
  return make_dense_block(config, weights, layer);
}

}  // namespace

extern const Architecture kMistral;
constinit const Architecture kMistral{.model_type = "mistral",
                                      .layer_type = layer_type,
                                      .extras =
                                          [](const ModelConfig& config) {
                                            require_silu(config);
                                            return nlohmann::json::object();
                                          },
                                      .layer_geometry = attention_geometry,
                                      .make_block = make_block};

}  // namespace meshnet
