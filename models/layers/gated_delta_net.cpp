#include "models/layers/gated_delta_net.h"

#include <ATen/ATen.h>

#include <utility>
#include <variant>
#include <vector>

#include "cache/layer_cache.h"
#include "models/kernels/causal_conv.h"
#include "models/kernels/gated_delta.h"
#include "models/kernels/rms_norm_gated.h"
#include "models/weights.h"

namespace meshnet {
namespace {

/// One sequence's rows [rows, conv_dim] through convolution and delta rule → [rows,
/// linear_num_value_heads, linear_value_head_dim].
at::Tensor run_sequence(const GatedDeltaNet& layer,
                        const at::Tensor& mixed_qkv,
                        const at::Tensor& g,
                        const at::Tensor& beta,
                        RecurrentCache& state) {
  const GatedDeltaNetConfig& config = layer.config;
  const at::Tensor convolved = causal_conv(mixed_qkv, layer.conv1d, state.conv_state);
  const auto heads = [&](int64_t first, int64_t count, int64_t head_dim) {
    return convolved.narrow(1, first, count * head_dim).view({convolved.size(0), count, head_dim});
  };
  const int64_t key_dim = config.key_dim();
  return gated_delta_rule(
      heads(0, config.linear_num_key_heads, config.linear_key_head_dim),
      heads(key_dim, config.linear_num_key_heads, config.linear_key_head_dim),
      heads(2 * key_dim, config.linear_num_value_heads, config.linear_value_head_dim),
      g,
      beta,
      state.delta_state);
}

RecurrentCache empty_state(const GatedDeltaNetConfig& config, const at::Tensor& x) {
  return std::get<RecurrentCache>(
      make_layer_cache(gated_delta_net_geometry(config), x.scalar_type(), x.device()));
}

GatedDeltaNet load(const Weights& weights,
                   const ModelConfig& config,
                   const GatedDeltaNetConfig& linear,
                   Linear in_proj) {
  const int64_t num_v_heads = linear.linear_num_value_heads;
  const int64_t kernel = linear.linear_conv_kernel_dim;
  const at::Tensor conv1d = weights.empty({kernel, linear.conv_dim()});
  const at::Tensor stored = at::empty({linear.conv_dim(), 1, kernel}, conv1d.options());
  weights.load("conv1d.weight", stored);
  conv1d.copy_(stored.squeeze(1).t());
  // Both pass through the compute dtype, as in transformers, before their arithmetic in float32.
  return {
      linear,
      config.rms_norm_eps,
      std::move(in_proj),
      conv1d,
      weights.get("dt_bias", {num_v_heads}).to(at::kFloat),
      -weights.get("A_log", {num_v_heads}).to(at::kFloat).exp(),
      weights.get("norm.weight", {linear.linear_value_head_dim}),
      load_linear(weights, linear.value_dim(), {{"out_proj", config.hidden_size}}, /*bias=*/false)};
}

}  // namespace

at::Tensor GatedDeltaNet::forward(const at::Tensor& x, const Step& step, int64_t layer) const {
  const int64_t num_v_heads = config.linear_num_value_heads;

  // 1. Project all rows: inputs of the convolution, the output's gate, and what becomes beta and g.
  const at::Tensor projected = in_proj.forward(x);
  const std::vector<at::Tensor> parts = projected.split_with_sizes(
      {config.conv_dim(), config.value_dim(), num_v_heads, num_v_heads}, 1);
  const at::Tensor& mixed_qkv = parts[0];
  const at::Tensor z = parts[1].unflatten(1, {num_v_heads, config.linear_value_head_dim});
  const at::Tensor beta = parts[2].sigmoid().to(at::kFloat);  // rounded before, as the reference
  const at::Tensor g = decay * at::softplus(parts[3].to(at::kFloat) + dt_bias);

  // 2. Convolution and delta rule, sequence by sequence, from its state or from zero.
  std::vector<at::Tensor> core_attn_out;  // each [rows, num_v_heads, head_v_dim]
  core_attn_out.reserve(step.sequences.size());
  for (const Sequence& sequence : step.sequences) {
    const auto own = [&](const at::Tensor& rows) {
      return rows.narrow(0, sequence.first_row, sequence.rows);
    };
    RecurrentCache fresh;
    if (sequence.cache == nullptr) fresh = empty_state(config, x);
    RecurrentCache& state =
        sequence.cache != nullptr ? std::get<RecurrentCache>(sequence.cache->at(layer)) : fresh;
    core_attn_out.push_back(run_sequence(*this, own(mixed_qkv), own(g), own(beta), state));
  }

  // 3. Norm and gate, and back to hidden_size, all rows at once.
  const at::Tensor gated = rms_norm_gated(
      core_attn_out.size() == 1 ? core_attn_out[0] : at::cat(core_attn_out), z, norm, rms_norm_eps);
  return out_proj.forward(gated.flatten(1));
}

GatedDeltaNet load_qwen3_next_gated_delta_net(const Weights& weights,
                                              const ModelConfig& config,
                                              const GatedDeltaNetConfig& linear) {
  const int64_t num_k_heads = linear.linear_num_key_heads;
  const int64_t group = linear.linear_num_value_heads / num_k_heads;
  const int64_t key_dim = linear.key_dim();
  const int64_t value_rows = group * linear.linear_value_head_dim;  // of one key head
  const int64_t z = linear.conv_dim();
  const int64_t b = z + linear.value_dim();
  const int64_t a = b + linear.linear_num_value_heads;
  const at::Tensor in_proj = weights.empty({a + linear.linear_num_value_heads, config.hidden_size});
  load_by_head(weights,
               "in_proj_qkvz.weight",
               num_k_heads,
               {{0, linear.linear_key_head_dim},
                {key_dim, linear.linear_key_head_dim},
                {2 * key_dim, value_rows},
                {z, value_rows}},
               in_proj);
  load_by_head(weights, "in_proj_ba.weight", num_k_heads, {{b, group}, {a, group}}, in_proj);
  return load(weights, config, linear, {in_proj, /*bias=*/{}});
}

GatedDeltaNet load_qwen3_5_gated_delta_net(const Weights& weights,
                                           const ModelConfig& config,
                                           const GatedDeltaNetConfig& linear) {
  const int64_t num_v_heads = linear.linear_num_value_heads;
  return load(weights,
              config,
              linear,
              load_linear(weights,
                          config.hidden_size,
                          {{"in_proj_qkv", linear.conv_dim()},
                           {"in_proj_z", linear.value_dim()},
                           {"in_proj_b", num_v_heads},
                           {"in_proj_a", num_v_heads}},
                          /*bias=*/false));
}

LayerGeometry gated_delta_net_geometry(const GatedDeltaNetConfig& linear) {
  return RecurrentGeometry{linear.conv_dim(),
                           linear.linear_conv_kernel_dim,
                           linear.linear_num_value_heads,
                           linear.linear_key_head_dim,
                           linear.linear_value_head_dim};
}

}  // namespace meshnet
