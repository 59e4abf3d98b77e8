#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "models/block.h"
#include "models/config.h"

/// Rotary position embedding, step by step as in transformers, so that bf16 rounds in the same
/// places. Angles are always float32.
namespace meshnet {

/// → [head_dim / 2], float32, on the CPU.
at::Tensor rope_inv_freq(const RopeParameters& rope, int64_t head_dim);

/// The absolute position of every row of a packed batch → int64 [tokens], on the CPU.
at::Tensor positions(const std::vector<Sequence>& sequences);

/// positions [tokens], inv_freq [head_dim / 2] → cos and sin [tokens, head_dim] of `dtype`.
std::pair<at::Tensor, at::Tensor> rotary_embedding(const at::Tensor& positions,
                                                   const at::Tensor& inv_freq,
                                                   at::ScalarType dtype);

/// states [tokens, heads, head_dim], cos and sin [tokens, head_dim] → the same shape, rotated.
at::Tensor apply_rotary_pos_emb(const at::Tensor& states,
                                const at::Tensor& cos,
                                const at::Tensor& sin);

}  // namespace meshnet
