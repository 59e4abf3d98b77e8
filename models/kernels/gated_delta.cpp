#include "models/kernels/gated_delta.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace meshnet {
namespace {

void check(const at::Tensor& query,
           const at::Tensor& key,
           const at::Tensor& value,
           const at::Tensor& g,
           const at::Tensor& beta,
           const at::Tensor& state) {
  TORCH_CHECK(
      query.dim() == 3 && value.dim() == 3 && query.sizes() == key.sizes() &&
          query.size(0) == value.size(0) && query.size(1) > 0 && value.size(1) % query.size(1) == 0,
      "gated_delta_rule: expected query and key [tokens, num_k_heads, head_k_dim] and value "
      "[tokens, num_v_heads, head_v_dim], got ",
      query.sizes(),
      ", ",
      key.sizes(),
      " and ",
      value.sizes());
  const std::vector<int64_t> gates = {value.size(0), value.size(1)};
  const std::vector<int64_t> states = {value.size(1), query.size(2), value.size(2)};
  TORCH_CHECK(g.sizes() == gates && beta.sizes() == gates && state.sizes() == states,
              "gated_delta_rule: expected g and beta ",
              at::IntArrayRef(gates),
              " and state ",
              at::IntArrayRef(states),
              ", got ",
              g.sizes(),
              ", ",
              beta.sizes(),
              " and ",
              state.sizes());
  TORCH_CHECK(query.scalar_type() == value.scalar_type() &&
                  key.scalar_type() == value.scalar_type() && g.scalar_type() == at::kFloat &&
                  beta.scalar_type() == at::kFloat && state.scalar_type() == at::kFloat &&
                  state.is_contiguous(),
              "gated_delta_rule: expected query, key and value of one dtype, g and beta in float32 "
              "and state in float32, contiguous");
}

/// The same values, with heads and dimensions of a token contiguous.
at::Tensor packed(const at::Tensor& x) {
  return x.stride(2) == 1 && x.stride(1) == x.size(2) ? x : x.contiguous();
}

at::Tensor l2norm(const at::Tensor& x) {
  return x * at::rsqrt((x * x).sum(-1, /*keepdim=*/true) + kL2NormEps);
}

}  // namespace

at::Tensor gated_delta_rule(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const at::Tensor& g,
                            const at::Tensor& beta,
                            const at::Tensor& state) {
  check(query, key, value, g, beta, state);
  const auto run =
      [&](const auto& kernel, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return kernel(packed(q), packed(k), packed(v), g.contiguous(), beta.contiguous(), state);
      };
#ifdef MESHNET_CUDA
  if (value.is_cuda() && query.size(2) <= 256) return run(gated_delta_rule_cuda, query, key, value);
#endif
  if (!value.is_cpu()) return gated_delta_rule_reference(query, key, value, g, beta, state);
  const auto kernel = value.size(0) == 1 ? gated_delta_step_cpu : gated_delta_chunks_cpu;
  if (value.scalar_type() != at::kHalf) return run(kernel, query, key, value);
  return run(kernel, query.to(at::kFloat), key.to(at::kFloat), value.to(at::kFloat)).to(at::kHalf);
}

at::Tensor gated_delta_rule_reference(const at::Tensor& query,
                                      const at::Tensor& key,
                                      const at::Tensor& value,
                                      const at::Tensor& g,
                                      const at::Tensor& beta,
                                      const at::Tensor& state) {
  check(query, key, value, g, beta, state);
  const int64_t group = value.size(1) / key.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(query.size(2)));
  // [tokens, num_v_heads, head_k_dim, 1], so that they meet the rows of the state
  const at::Tensor q =
      (l2norm(query.to(at::kFloat)) * scale).repeat_interleave(group, 1).unsqueeze(-1);
  const at::Tensor k = l2norm(key.to(at::kFloat)).repeat_interleave(group, 1).unsqueeze(-1);
  const at::Tensor v = value.to(at::kFloat);
  const at::Tensor decay = g.exp().unsqueeze(-1).unsqueeze(-1);  // [tokens, num_v_heads, 1, 1]

  at::Tensor out = at::empty_like(v, at::MemoryFormat::Contiguous);
  for (int64_t t = 0; t < value.size(0); ++t) {
    state.mul_(decay[t]);
    const at::Tensor kv_mem = (state * k[t]).sum(-2);                  // [num_v_heads, head_v_dim]
    const at::Tensor delta = (v[t] - kv_mem) * beta[t].unsqueeze(-1);  // the same
    state.add_(k[t] * delta.unsqueeze(-2));
    out[t] = (state * q[t]).sum(-2);
  }
  return out.to(value.scalar_type());
}

}  // namespace meshnet
