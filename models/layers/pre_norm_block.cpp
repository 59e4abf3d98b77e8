#include "models/layers/pre_norm_block.h"

#include <ATen/ATen.h>

#include <utility>

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

}  // namespace meshnet
