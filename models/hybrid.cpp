#include "models/hybrid.h"

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "models/weights.h"

namespace meshnet {
namespace {

struct HybridExtras {
  bool attention_bias;
  GatedDeltaNetConfig linear;
};

HybridExtras read_extras(const ModelConfig& config) {
  require_silu(config);
  const JsonReader file(*config.raw, config.path.string());
  const auto size = [&](const char* key, int64_t fallback) {
    return file.integer_or(key, fallback, 1, kMaxSize);
  };
  const HybridExtras extras{read_attention_bias(config),
                            {.linear_num_key_heads = size("linear_num_key_heads", 16),
                             .linear_num_value_heads = size("linear_num_value_heads", 32),
                             .linear_key_head_dim = size("linear_key_head_dim", 128),
                             .linear_value_head_dim = size("linear_value_head_dim", 128),
                             .linear_conv_kernel_dim = size("linear_conv_kernel_dim", 4)}};
  if (extras.linear.linear_num_value_heads % extras.linear.linear_num_key_heads != 0) {
    file.fail(
        "linear_num_value_heads",
        "a multiple of linear_num_key_heads " + std::to_string(extras.linear.linear_num_key_heads));
  }
  return extras;
}

bool is_recurrent(const ModelConfig& config, int64_t layer) {
  return config.layer_types[static_cast<std::size_t>(layer)] == LayerType::kLinear;
}

}  // namespace

TokenMixer load_hybrid_mixer(const ModelConfig& config,
                             const Weights& weights,
                             int64_t layer,
                             LoadGatedDeltaNet load_gated_delta_net) {
  const HybridExtras extras = read_extras(config);
  if (is_recurrent(config, layer)) {
    return load_gated_delta_net(weights.at("linear_attn"), config, extras.linear);
  }
  return load_attention(weights.at("self_attn"),
                        config,
                        layer,
                        {.qkv_bias = extras.attention_bias,
                         .o_bias = extras.attention_bias,
                         .qk_norm = true,
                         .zero_centred_norm = true,
                         .output_gate = true});
}

LayerGeometry hybrid_geometry(const ModelConfig& config, int64_t layer) {
  if (is_recurrent(config, layer)) return gated_delta_net_geometry(read_extras(config).linear);
  return attention_geometry(config, layer);
}

nlohmann::json hybrid_extras(const ModelConfig& config) {
  const HybridExtras extras = read_extras(config);
  const GatedDeltaNetConfig& linear = extras.linear;
  return {{"attention_bias", extras.attention_bias},
          {"linear_num_key_heads", linear.linear_num_key_heads},
          {"linear_num_value_heads", linear.linear_num_value_heads},
          {"linear_key_head_dim", linear.linear_key_head_dim},
          {"linear_value_head_dim", linear.linear_value_head_dim},
          {"linear_conv_kernel_dim", linear.linear_conv_kernel_dim}};
}

}  // namespace meshnet
