// Llama (2, 3.x, SmolLM): transformers/models/llama/modeling_llama.py, names kept.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/layers/pre_norm_block.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

struct LlamaExtras {
  bool attention_bias;
  bool mlp_bias;
};

LlamaExtras read_extras(const ModelConfig& config) {
  require_silu(config);
  const JsonReader file(*config.raw, config.path.string());
  return {read_attention_bias(config), file.boolean_or("mlp_bias", false)};
}

std::unique_ptr<Block> make_block(const ModelConfig& config,
                                  const Weights& weights,
                                  int64_t layer) {
  const LlamaExtras extras = read_extras(config);
  return make_dense_block(config,
                          weights,
                          layer,
                          {.qkv_bias = extras.attention_bias, .o_bias = extras.attention_bias},
                          extras.mlp_bias);
}

}  // namespace

extern const Architecture kLlama;
constinit const Architecture kLlama{.model_type = "llama",
                                    .extras =
                                        [](const ModelConfig& config) {
                                          const auto extras = read_extras(config);
                                          return nlohmann::json{
                                              {"attention_bias", extras.attention_bias},
                                              {"mlp_bias", extras.mlp_bias}};
                                        },
                                    .layer_geometry = attention_geometry,
                                    .make_block = make_block};

}  // namespace meshnet
