#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "models/block.h"
#include "models/config.h"
#include "models/layers/attention.h"
#include "models/layers/gated_delta_net.h"
#include "models/layers/mlp.h"
#include "models/layers/moe.h"
#include "models/layers/rms_norm.h"

namespace meshnet {

class Weights;

/// What moves information between tokens, and what works on each token alone.
using TokenMixer = std::variant<Attention, GatedDeltaNet>;
using FeedForward = std::variant<Mlp, SparseMoe>;

/// The decoder layer of most families: x + mixer(input_layernorm(x)), then
/// x + feed_forward(post_attention_layernorm(x)).
class PreNormBlock final : public Block {
 public:
  /// `weights` stands at the layer's prefix.
  PreNormBlock(const ModelConfig& config,
               const Weights& weights,
               TokenMixer mixer,
               FeedForward feed_forward,
               bool zero_centred_norm = false);

  at::Tensor forward(const at::Tensor& hidden_states,
                     const Step& step,
                     int64_t layer) const override;

 private:
  RmsNorm input_layernorm_;
  TokenMixer mixer_;
  RmsNorm post_attention_layernorm_;
  FeedForward feed_forward_;
};

/// The layer of the families without experts and delta rule: attention and a gated MLP with silu.
std::unique_ptr<Block> make_dense_block(const ModelConfig& config,
                                        const Weights& weights,
                                        int64_t layer,
                                        const AttentionOptions& options = {},
                                        bool mlp_bias = false);

/// The mixture of experts of a sparse layer, the dense MLP of another one.
FeedForward load_sparse_or_dense(const ModelConfig& config,
                                 const Weights& weights,
                                 int64_t layer,
                                 const MoeConfig& experts);

}  // namespace meshnet
