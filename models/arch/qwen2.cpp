// Qwen2 and Qwen2.5: transformers/models/qwen2/modeling_qwen2.py, names kept. A Llama whose q, k
// and v projections always have a bias.

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

void check_extras(const ModelConfig& config) {
  const JsonReader file(*config.raw, config.path.string());
  if (file.string_or("hidden_act", "silu") != "silu") {
    file.fail("hidden_act", "silu (no other activation is supported for qwen2)");
  }
  if (file.boolean_or("use_sliding_window", false)) {
    file.fail("use_sliding_window", "false (sliding-window layers are not supported for qwen2)");
  }
}

class Qwen2Block final : public Block {
 public:
  Qwen2Block(const ModelConfig& config, const Weights& weights)
      : rms_norm_eps_(config.rms_norm_eps),
        input_layernorm_(weights.get("input_layernorm.weight", {config.hidden_size})),
        self_attn_(
            load_attention(weights.at("self_attn"), config, /*qkv_bias=*/true, /*o_bias=*/false)),
        post_attention_layernorm_(
            weights.get("post_attention_layernorm.weight", {config.hidden_size})),
        mlp_(load_mlp(
            weights.at("mlp"), config.hidden_size, config.intermediate_size, /*bias=*/false)) {}

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

extern const Architecture kQwen2;
constinit const Architecture kQwen2{
    .model_type = "qwen2",
    .extras =
        [](const ModelConfig& config) {
          check_extras(config);
          return nlohmann::json::object();
        },
    .layer_geometry = [](const ModelConfig& config, int64_t) { return attention_geometry(config); },
    .make_block = [](const ModelConfig& config, const Weights& weights, int64_t)
        -> std::unique_ptr<Block> { return std::make_unique<Qwen2Block>(config, weights); }};

}  // namespace meshnet
