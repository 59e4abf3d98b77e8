#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "models/kernels/experts.h"
#include "models/layers/linear.h"
#include "models/layers/mlp.h"

namespace meshnet {

class Weights;

/// The config fields that decide a mixture of experts, Hugging Face's names.
struct MoeConfig {
  int64_t hidden_size;
  int64_t num_experts;
  int64_t num_experts_per_tok;
  int64_t moe_intermediate_size;
  int64_t shared_expert_intermediate_size;  ///< 0 = no shared expert
  bool norm_topk_prob;
};

/// Qwen3's mixture of experts: a router sends each token to its num_experts_per_tok experts; a
/// shared expert, where there is one, sees every token.
struct SparseMoe {
  int64_t num_experts;
  int64_t num_experts_per_tok;
  bool norm_topk_prob;
  Linear gate;  ///< [num_experts, hidden_size], and shared_expert_gate where there is one
  ExpertWeights experts;
  std::optional<Mlp> shared_expert;

  /// x [tokens, hidden_size], contiguous → the same shape.
  at::Tensor forward(const at::Tensor& x) const;
  /// The experts that forward takes. They depend on a token's own row only, and nothing is kept.
  Routing route(const at::Tensor& x) const;
};

/// `weights` stands at "mlp". The experts lie in the checkpoint one by one (Qwen3-MoE, Qwen3-Next,
/// FP8 releases, and what transformers 5.23 saves) or as two tensors (Qwen3.5-MoE); in memory it is
/// the same. Throws std::runtime_error naming the tensor that is missing or has another shape.
SparseMoe load_moe(const Weights& weights, const MoeConfig& config);

}  // namespace meshnet
