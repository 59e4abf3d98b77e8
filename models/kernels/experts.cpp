#include "models/kernels/experts.h"

#include <ATen/ATen.h>

#include "models/kernels/silu_and_mul.h"

namespace meshnet {
namespace {

/// Each token's way to each of its experts, by expert.
struct Grouped {
  at::Tensor way;      ///< [tokens * top_k]: token * top_k + its place in the token's routing
  at::Tensor tokens;   ///< [tokens * top_k]
  at::Tensor weights;  ///< [tokens * top_k, 1]
  at::Tensor ends;     ///< [num_experts], int32: where each expert's part ends
};

Grouped group_by_expert(const Routing& routing, int64_t num_experts) {
  const auto [expert, way] =
      routing.index.reshape(-1).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  return {way,
          way.floor_divide(routing.index.size(1)),
          routing.weights.reshape(-1).index_select(0, way).unsqueeze(1),
          at::searchsorted(expert,
                           at::arange(num_experts, expert.options()),
                           /*out_int32=*/true,
                           /*right=*/true)};
}

/// outputs [tokens * top_k, hidden], by expert → [tokens, hidden]. Each is rounded after its
/// weight, the sum once.
at::Tensor weighted_sum(const at::Tensor& outputs, const Grouped& grouped, int64_t top_k) {
  at::Tensor by_token = at::empty_like(outputs);
  by_token.index_copy_(0, grouped.way, outputs * grouped.weights);
  return by_token.view({-1, top_k, outputs.size(1)}).sum(1);
}

}  // namespace

Routing top_k_routing(const at::Tensor& router_logits, int64_t top_k, bool norm_topk_prob) {
  const at::Tensor router_probs = router_logits.softmax(-1, at::kFloat);
  // Not topk: it leaves open which of equal ones it takes.
  const auto [sorted, index] = router_probs.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  at::Tensor top = sorted.narrow(-1, 0, top_k);
  if (norm_topk_prob) top = top / top.sum(-1, /*keepdim=*/true);
  return {index.narrow(-1, 0, top_k), top.to(router_logits.scalar_type())};
}

at::Tensor experts_one_by_one(const at::Tensor& x,
                              const Routing& routing,
                              const ExpertWeights& experts) {
  const int64_t num_experts = experts.gate_up_proj.size(0);
  const int64_t top_k = routing.index.size(1);
  const Grouped grouped = group_by_expert(routing, num_experts);
  const at::Tensor rows = x.index_select(0, grouped.tokens);
  const at::Tensor ends = grouped.ends.cpu();
  at::Tensor outputs = at::empty_like(rows);
  int64_t begin = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t end = ends.const_data_ptr<int32_t>()[expert];
    if (end == begin) continue;
    const at::Tensor gate_up =
        at::linear(rows.narrow(0, begin, end - begin), experts.gate_up_proj[expert]);
    outputs.narrow(0, begin, end - begin)
        .copy_(at::linear(silu_and_mul(gate_up), experts.down_proj[expert]));
    begin = end;
  }
  return weighted_sum(outputs, grouped, top_k);
}

at::Tensor experts_grouped(const at::Tensor& x,
                           const Routing& routing,
                           const ExpertWeights& experts) {
  const Grouped grouped = group_by_expert(routing, experts.gate_up_proj.size(0));
  const at::Tensor rows = x.index_select(0, grouped.tokens);
  const at::Tensor gate_up =
      at::_grouped_mm(rows, experts.gate_up_proj.transpose(1, 2), grouped.ends);
  const at::Tensor outputs =
      at::_grouped_mm(silu_and_mul(gate_up), experts.down_proj.transpose(1, 2), grouped.ends);
  return weighted_sum(outputs, grouped, routing.index.size(1));
}

bool takes_grouped_products(const ExpertWeights& experts) {
  const auto aligned = [](const at::Tensor& weight) {
    constexpr int64_t alignment = 16;  // bytes
    return reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % alignment == 0 &&
           weight.size(-1) * weight.element_size() % alignment == 0;
  };
  return aligned(experts.gate_up_proj) && aligned(experts.down_proj);
}

}  // namespace meshnet
