#include "models/layers/moe.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "models/kernels/bf16_cpu.h"
#include "models/kernels/moe_cpu.h"
#include "models/weights.h"

namespace meshnet {
namespace {

/// Whether the kernels of moe_cpu.h take the whole of it.
bool takes_moe_kernels(const SparseMoe& moe, const at::Tensor& x) {
  return takes_bf16_kernels(x) && x.is_contiguous() && takes_bf16_kernels(moe.experts.down_proj) &&
         (!moe.shared_expert || takes_bf16_kernels(moe.shared_expert->down_proj.weight));
}

/// mlp.gate, and the shared expert's gate in one row more.
Linear load_gate(const Weights& weights, const MoeConfig& config) {
  std::vector<Projection> projections{{"gate", config.num_experts}};
  if (config.shared_expert_intermediate_size > 0) projections.push_back({"shared_expert_gate", 1});
  return load_linear(weights, config.hidden_size, projections, /*bias=*/false);
}

ExpertWeights load_experts(const Weights& weights, const MoeConfig& config) {
  const int64_t size = config.moe_intermediate_size;
  const ExpertWeights experts{weights.empty({config.num_experts, 2 * size, config.hidden_size}),
                              weights.empty({config.num_experts, config.hidden_size, size})};
  if (weights.has("gate_up_proj") || weights.has("down_proj")) {
    weights.load("gate_up_proj", experts.gate_up_proj);
    weights.load("down_proj", experts.down_proj);
    return experts;
  }
  for (int64_t i = 0; i < config.num_experts; ++i) {
    const Weights expert = weights.at(std::to_string(i));
    expert.load("gate_proj.weight", experts.gate_up_proj[i].narrow(0, 0, size));
    expert.load("up_proj.weight", experts.gate_up_proj[i].narrow(0, size, size));
    expert.load("down_proj.weight", experts.down_proj[i]);
  }
  return experts;
}

/// What one product with `gate` says.
struct Gates {
  Routing routing;
  at::Tensor shared_expert;  // [tokens, 1]
};

Gates gates_of(const SparseMoe& moe, const at::Tensor& x, bool kernels) {
  const at::Tensor logits = kernels ? linear_rows(x, moe.gate.weight) : moe.gate.forward(x);
  const auto routing = kernels ? top_k_routing_bf16 : top_k_routing;
  Gates gates{
      routing(logits.narrow(1, 0, moe.num_experts), moe.num_experts_per_tok, moe.norm_topk_prob),
      {}};
  if (moe.shared_expert) gates.shared_expert = logits.narrow(1, moe.num_experts, 1).sigmoid();
  return gates;
}

at::Tensor forward_in_kernels(const SparseMoe& moe, const at::Tensor& x) {
  const Gates gates = gates_of(moe, x, /*kernels=*/true);
  if (!moe.shared_expert) return experts_bf16(x, gates.routing, moe.experts, nullptr);
  const SharedExpert shared{moe.shared_expert->gate_up_proj.weight,
                            moe.shared_expert->down_proj.weight,
                            gates.shared_expert};
  return experts_bf16(x, gates.routing, moe.experts, &shared);
}

}  // namespace

at::Tensor SparseMoe::forward(const at::Tensor& x) const {
  if (takes_moe_kernels(*this, x)) return forward_in_kernels(*this, x);
  const Gates gates = gates_of(*this, x, /*kernels=*/false);
  const at::Tensor out = x.is_cuda() && takes_grouped_products(experts)
                             ? experts_grouped(x, gates.routing, experts)
                             : experts_one_by_one(x, gates.routing, experts);
  return shared_expert ? out + gates.shared_expert * shared_expert->forward(x) : out;
}

Routing SparseMoe::route(const at::Tensor& x) const {
  return gates_of(*this, x, takes_moe_kernels(*this, x)).routing;
}

SparseMoe load_moe(const Weights& weights, const MoeConfig& config) {
  SparseMoe moe{config.num_experts,
                config.num_experts_per_tok,
                config.norm_topk_prob,
                load_gate(weights, config),
                load_experts(weights.at("experts"), config),
                std::nullopt};
  if (config.shared_expert_intermediate_size > 0) {
    moe.shared_expert = load_mlp(weights.at("shared_expert"),
                                 config.hidden_size,
                                 config.shared_expert_intermediate_size,
                                 /*bias=*/false);
  }
  return moe;
}

}  // namespace meshnet
