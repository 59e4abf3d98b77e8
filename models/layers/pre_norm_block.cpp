#include "models/layers/pre_norm_block.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/moe_config.h"
#include "models/weights.h"

namespace meshnet {

PreNormBlock::PreNormBlock(const ModelConfig& config,
                           const Weights& weights,
                           TokenMixer mixer,
                           FeedForward feed_forward,
                           bool zero_centred_norm)
    : input_layernorm_{weights.get("input_layernorm.weight", {config.hidden_size}),
                       config.rms_norm_eps,
                       zero_centred_norm},
      mixer_(std::move(mixer)),
      post_attention_layernorm_{
          weights.get("post_attention_layernorm.weight", {config.hidden_size}),
          config.rms_norm_eps,
          zero_centred_norm},
      feed_forward_(std::move(feed_forward)) {}

at::Tensor PreNormBlock::forward(const at::Tensor& hidden_states,
                                 const Step& step,
                                 int64_t layer) const {
  const at::Tensor mixed = std::visit(
      [&](const auto& mixer) {
        return mixer.forward(input_layernorm_.forward(hidden_states), step, layer);
      },
      mixer_);
  const at::Tensor attended = hidden_states + mixed;
  return attended + std::visit(
                        [&](const auto& feed_forward) {
                          return feed_forward.forward(post_attention_layernorm_.forward(attended));
                        },
                        feed_forward_);
}

std::unique_ptr<Block> make_dense_block(const ModelConfig& config,
                                        const Weights& weights,
                                        int64_t layer,
                                        const AttentionOptions& options,
                                        bool mlp_bias) {
  return std::make_unique<PreNormBlock>(
      config,
      weights,
      load_attention(weights.at("self_attn"), config, layer, options),
      load_mlp(weights.at("mlp"), config.hidden_size, config.intermediate_size, mlp_bias));
}

FeedForward load_sparse_or_dense(const ModelConfig& config,
                                 const Weights& weights,
                                 int64_t layer,
                                 const MoeConfig& experts) {
  const Weights mlp = weights.at("mlp");
  if (is_sparse_layer(config, layer)) return load_moe(mlp, experts);
  return load_mlp(mlp, config.hidden_size, config.intermediate_size);
}

}  // namespace meshnet
