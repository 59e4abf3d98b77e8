// Llama (2, 3.x, SmolLM): transformers/models/llama/modeling_llama.py, names kept.

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/layers/linear.h"
#include "models/layers/mlp.h"
#include "models/ops.h"
#include "models/registry.h"
#include "models/rope.h"
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
      : num_attention_heads_(config.num_attention_heads),
        num_key_value_heads_(config.num_key_value_heads),
        head_dim_(config.head_dim),
        rms_norm_eps_(config.rms_norm_eps) {
    const int64_t hidden_size = config.hidden_size;
    const int64_t q_size = num_attention_heads_ * head_dim_;
    const int64_t kv_size = num_key_value_heads_ * head_dim_;
    const Weights self_attn = weights.at("self_attn");
    input_layernorm_ = weights.get("input_layernorm.weight", {hidden_size});
    qkv_proj_ = load_linear(self_attn,
                            hidden_size,
                            {{"q_proj", q_size}, {"k_proj", kv_size}, {"v_proj", kv_size}},
                            extras.attention_bias);
    o_proj_ = load_linear(self_attn, q_size, {{"o_proj", hidden_size}}, extras.attention_bias);
    post_attention_layernorm_ = weights.get("post_attention_layernorm.weight", {hidden_size});
    mlp_ = load_mlp(weights.at("mlp"), hidden_size, config.intermediate_size, extras.mlp_bias);
  }

  at::Tensor forward(const at::Tensor& hidden_states, const Step& step) const override {
    const at::Tensor attended =
        hidden_states + attention(rms_norm(hidden_states, input_layernorm_, rms_norm_eps_), step);
    return attended + mlp_.forward(rms_norm(attended, post_attention_layernorm_, rms_norm_eps_));
  }

 private:
  /// x [tokens, hidden_size] → the same shape.
  at::Tensor attention(const at::Tensor& x, const Step& step) const {
    const int64_t rotated_heads = num_attention_heads_ + num_key_value_heads_;

    // 1. Project: per token its query heads, then its key heads, then its value heads.
    const at::Tensor qkv =  // [tokens, num_attention_heads + 2 * num_key_value_heads, head_dim]
        qkv_proj_.forward(x).view({x.size(0), rotated_heads + num_key_value_heads_, head_dim_});

    // 2. Rotate queries and keys together, by each row's own position.
    const at::Tensor qk =  // [tokens, num_attention_heads + num_key_value_heads, head_dim]
        apply_rotary_pos_emb(qkv.narrow(1, 0, rotated_heads), step.cos, step.sin);
    const at::Tensor query = qk.narrow(1, 0, num_attention_heads_);
    const at::Tensor key = qk.narrow(1, num_attention_heads_, num_key_value_heads_);
    const at::Tensor value = qkv.narrow(1, rotated_heads, num_key_value_heads_);

    // 3. Attend, sequence by sequence: each sees its own rows only.
    std::vector<at::Tensor> attn_output;  // each [rows, num_attention_heads * head_dim]
    attn_output.reserve(step.sequences.size());
    for (const Sequence& sequence : step.sequences) {
      const auto own = [&](const at::Tensor& rows) {
        return rows.narrow(0, sequence.first_row, sequence.rows);
      };
      attn_output.push_back(causal_attention(
          own(query), own(key), own(value), 1.0 / std::sqrt(static_cast<double>(head_dim_))));
    }

    // 4. Back to hidden_size, all rows at once.
    return o_proj_.forward(attn_output.size() == 1 ? attn_output[0] : at::cat(attn_output));
  }

  int64_t num_attention_heads_;
  int64_t num_key_value_heads_;
  int64_t head_dim_;
  double rms_norm_eps_;

  at::Tensor input_layernorm_;  // [hidden_size]
  Linear qkv_proj_;  // [(num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size]
  Linear o_proj_;    // [hidden_size, num_attention_heads * head_dim]
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
    .make_block =
        [](const ModelConfig& config, const Weights& weights, int64_t) -> std::unique_ptr<Block> {
      return std::make_unique<LlamaBlock>(config, read_extras(config), weights);
    }};

}  // namespace meshnet
