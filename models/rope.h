#pragma once

#include <ATen/core/Tensor.h>

#include "models/block.h"
#include "models/rope_parameters.h"

/// Rotary position embedding, step by step as in transformers, so that bf16 rounds in the same
/// places. Angles are always float32.
namespace meshnet {

struct RotaryFrequencies {
  at::Tensor inv_freq;             ///< [rotary_dim / 2], float32
  double attention_scaling = 1.0;  ///< of cosine and sine
};

/// By the formulas of transformers' modeling_rope_utils.py, bit for bit.
RotaryFrequencies rope_frequencies(const RopeParameters& rope,
                                   int64_t head_dim,
                                   at::Device device = at::kCPU);

/// The absolute position of every row of a packed batch → int64 [tokens], counted on `device`.
at::Tensor positions(const std::vector<Sequence>& sequences, at::Device device);

/// positions [tokens] → cos and sin [tokens, rotary_dim] of `dtype`.
RotaryEmbedding rotary_embedding(const at::Tensor& positions,
                                 const RotaryFrequencies& frequencies,
                                 at::ScalarType dtype);

/// states [tokens, heads, head_dim] → the same shape, the first rotary_dim numbers of each head
/// rotated, the others as they were.
at::Tensor apply_rotary_pos_emb(const at::Tensor& states, const RotaryEmbedding& rotary);

/// The same, perhaps in place: the memory of `states` is of no more use to the caller.
at::Tensor rotate_heads(const at::Tensor& states, const RotaryEmbedding& rotary);

}  // namespace meshnet
