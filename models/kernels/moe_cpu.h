#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/kernels/experts.h"

/// Mixture of experts in bfloat16 on processors with AVX-512 BF16: for any number of rows one
/// parallel region each for logits, activations and outputs. Sums are float32. A row comes out the
/// same, bit for bit, whichever rows are beside it.
namespace meshnet {

/// A gated MLP that every token goes through.
struct SharedExpert {
  at::Tensor gate_up_proj;  ///< [2 * intermediate, hidden]
  at::Tensor down_proj;     ///< [hidden, intermediate]
  at::Tensor weights;       ///< [tokens, 1]
};

/// x [tokens, in_features], weight [out_features, in_features], both contiguous and for
/// takes_bf16_kernels → [tokens, out_features]. The twin is at::linear.
at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight);

/// router_logits [tokens, num_experts], bfloat16, columns of a wider tensor perhaps. The twin is
/// top_k_routing in experts.h.
Routing top_k_routing_bf16(const at::Tensor& router_logits, int64_t top_k, bool norm_topk_prob);

/// x [tokens, hidden] → the sum of each token's experts' outputs × weights, and of the shared
/// expert's where `shared` is not nullptr. All are contiguous, and hidden and both intermediate
/// sizes multiples of 32. The twin is experts_one_by_one in experts.h, + the shared MLP × its
/// weights.
at::Tensor experts_bf16(const at::Tensor& x,
                        const Routing& routing,
                        const ExpertWeights& experts,
                        const SharedExpert* shared);

}  // namespace meshnet
