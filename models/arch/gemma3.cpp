// Gemma 3, its text model: transformers/models/gemma3/modeling_gemma3.py, names kept.

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/layer_types.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

struct Gemma3Extras {
  bool attention_bias;
  double query_pre_attn_scalar;
};

Gemma3Extras read_extras(const ModelConfig& config) {
  const JsonReader file(*config.raw, config.path.string());
  if (file.string_or("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh") {
    file.fail("hidden_activation", "gelu_pytorch_tanh");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (file.has(key)) file.fail(key, "null (soft caps are not supported for gemma3)");
  }
  if (file.boolean_or("use_bidirectional_attention", false)) {
    file.fail("use_bidirectional_attention", "false");
  }
  return {read_attention_bias(config), file.positive_or("query_pre_attn_scalar", 256.0)};
}

/// Every sliding_window_pattern-th layer sees all, where layer_types does not say.
LayerType layer_type(const ModelConfig& config, int64_t layer) {
  const JsonReader file(*config.raw, config.path.string());
  const int64_t pattern = file.integer_or("sliding_window_pattern", 6, 1, int64_t{1} << 31);
  return listed_layer_type(
      config, layer, (layer + 1) % pattern == 0 ? LayerType::kFull : LayerType::kSliding);
}

/// Norms before and after both halves.
class Gemma3Block final : public Block {
 public:
  Gemma3Block(const ModelConfig& config, const Weights& weights, int64_t layer)
      : Gemma3Block(config, read_extras(config), weights, layer) {}

  at::Tensor forward(const at::Tensor& hidden_states,
                     const Step& step,
                     int64_t layer) const override {
    const at::Tensor attended =
        hidden_states + post_attention_layernorm_.forward(self_attn_.forward(
                            input_layernorm_.forward(hidden_states), step, layer));
    return attended + post_feedforward_layernorm_.forward(
                          mlp_.forward(pre_feedforward_layernorm_.forward(attended)));
  }

 private:
  Gemma3Block(const ModelConfig& config,
              const Gemma3Extras& extras,
              const Weights& weights,
              int64_t layer)
      : input_layernorm_(norm(config, weights, "input_layernorm.weight")),
        self_attn_(load_attention(weights.at("self_attn"),
                                  config,
                                  layer,
                                  {.qkv_bias = extras.attention_bias,
                                   .o_bias = extras.attention_bias,
                                   .qk_norm = true,
                                   .zero_centred_norm = true,
                                   .scaling = 1.0 / std::sqrt(extras.query_pre_attn_scalar)})),
        post_attention_layernorm_(norm(config, weights, "post_attention_layernorm.weight")),
        pre_feedforward_layernorm_(norm(config, weights, "pre_feedforward_layernorm.weight")),
        mlp_(load_mlp(weights.at("mlp"),
                      config.hidden_size,
                      config.intermediate_size,
                      /*bias=*/false,
                      Activation::kGeluTanh)),
        post_feedforward_layernorm_(norm(config, weights, "post_feedforward_layernorm.weight")) {}

  static RmsNorm norm(const ModelConfig& config, const Weights& weights, const char* name) {
    return {weights.get(name, {config.hidden_size}), config.rms_norm_eps, /*zero_centred=*/true};
  }

  RmsNorm input_layernorm_;
  Attention self_attn_;
  RmsNorm post_attention_layernorm_;
  RmsNorm pre_feedforward_layernorm_;
  Mlp mlp_;
  RmsNorm post_feedforward_layernorm_;
};

}  // namespace

extern const Architecture kGemma3Text;
constinit const Architecture kGemma3Text{
    .model_type = "gemma3_text",
    .layer_type = layer_type,
    .rope_defaults = {.rope_theta = 1e6, .sliding_rope_theta = 1e4},
    .default_head_dim = 256,
    .default_tie_word_embeddings = true,
    .zero_centred_norm = true,
    .scaled_embedding = true,
    .extras =
        [](const ModelConfig& config) {
          const auto extras = read_extras(config);
          return nlohmann::json{{"attention_bias", extras.attention_bias},
                                {"query_pre_attn_scalar", extras.query_pre_attn_scalar}};
        },
    .layer_geometry = attention_geometry,
    .make_block = [](const ModelConfig& config,
                     const Weights& weights,
                     int64_t layer) -> std::unique_ptr<Block> {
      return std::make_unique<Gemma3Block>(config, weights, layer);
    }};

}  // namespace meshnet
