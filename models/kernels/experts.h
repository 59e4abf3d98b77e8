#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// The arithmetic of a mixture of experts as free functions, operation by operation in the order of
/// transformers/integrations/moe.py (5.23): `grouped_mm`, its default.
namespace meshnet {

/// Each token's experts, the most probable first.
struct Routing {
  at::Tensor index;    ///< [tokens, top_k], int64
  at::Tensor weights;  ///< [tokens, top_k], dtype of the hidden states
};

/// Gated MLPs of one shape.
struct ExpertWeights {
  at::Tensor gate_up_proj;  ///< [num_experts, 2 * intermediate, hidden]: gate_proj, then up_proj
  at::Tensor down_proj;     ///< [num_experts, hidden, intermediate]
};

/// router_logits [tokens, num_experts] → softmax over all experts in float32, the top_k largest
/// (the lowest index where they are equal), divided by their sum if norm_topk_prob. On any device;
/// the host waits for nothing.
Routing top_k_routing(const at::Tensor& router_logits, int64_t top_k, bool norm_topk_prob);

/// x [tokens, hidden] → each token's sum of its experts' outputs × weights, the same shape. One
/// product per expert that was chosen; the others are not read. Waits for the device that x is on.
at::Tensor experts_one_by_one(const at::Tensor& x,
                              const Routing& routing,
                              const ExpertWeights& experts);

/// The same in LibTorch's grouped products, whose offsets stay on the device: for bfloat16 on
/// compute capability 9.0 and newer nothing waits (elsewhere LibTorch itself reads the offsets).
/// `hidden` and `intermediate` are a multiple of 16 bytes, as the weights' addresses are.
at::Tensor experts_grouped(const at::Tensor& x,
                           const Routing& routing,
                           const ExpertWeights& experts);

/// Whether experts_grouped may have them.
bool takes_grouped_products(const ExpertWeights& experts);

}  // namespace meshnet
