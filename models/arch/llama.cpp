// Llama (2, 3.x, SmolLM): transformers/models/llama/modeling_llama.py, names kept.

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "models/ops.h"
#include "models/registry.h"
#include "models/weights.h"

namespace meshnet {
namespace {

struct LlamaExtras {
  bool attention_bias;
  bool mlp_bias;
};

LlamaExtras read_extras(const ModelConfig& config) {
  const JsonReader file(*config.raw, config.path.string());
  if (file.string_or("hidden_act", "silu") != "silu") {
    file.fail("hidden_act", "silu (no other activation is supported for llama)");
  }
  return {file.boolean_or("attention_bias", false), file.boolean_or("mlp_bias", false)};
}

class LlamaBlock final : public Block {
 public:
  LlamaBlock(const ModelConfig& config, const LlamaExtras& extras, const Weights& weights)
      : rms_norm_eps_(config.rms_norm_eps),
        input_layernorm_(weights.get("input_layernorm.weight", {config.hidden_size})),
        self_attn_(load_attention(
            weights.at("self_attn"), config, extras.attention_bias, extras.attention_bias)),
        post_attention_layernorm_(
            weights.get("post_attention_layernorm.weight", {config.hidden_size})),
        mlp_(load_mlp(
            weights.at("mlp"), config.hidden_size, config.intermediate_size, extras.mlp_bias)) {}

  at::Tensor forward(const at::Tensor& hidden_states,
                     const Step& step,
                     int64_t layer) const override {
    const at::Tensor normed = rms_norm(hidden_states, input_layernorm_, rms_norm_eps_);
    const at::Tensor attended = hidden_states + self_attn_.forward(normed, step, layer);
    return attended + mlp_.forward(rms_norm(attended, post_attention_layernorm_, rms_norm_eps_));
  }

 private:
  double rms_norm_eps_;
  at::Tensor input_layernorm_;  // [hidden_size]
  Attention self_attn_;
  at::Tensor post_attention_layernorm_;  // [hidden_size]
  Mlp mlp_;
};

}  // namespace

extern const Architecture kLlama;
constinit const Architecture kLlama{
    .model_type = "llama",
    .extras =
        [](const ModelConfig& config) {
          const auto extras = read_extras(config);
          return nlohmann::json{{"attention_bias", extras.attention_bias},
                                {"mlp_bias", extras.mlp_bias}};
        },
    .layer_geometry = [](const ModelConfig& config, int64_t) { return attention_geometry(config); },
    .make_block =
        [](const ModelConfig& config, const Weights& weights, int64_t) -> std::unique_ptr<Block> {
      return std::make_unique<LlamaBlock>(config, read_extras(config), weights);
    }};

}  // namespace meshnet
