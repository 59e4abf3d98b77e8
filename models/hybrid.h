#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "models/config.h"
#include "models/layers/gated_delta_net.h"
#include "models/layers/pre_norm_block.h"

/// What Qwen3-Next and Qwen3.5 share: gated delta-net layers, and gated full attention between
/// them.
namespace meshnet {

/// A family's way to store a gated delta-net layer.
using LoadGatedDeltaNet = GatedDeltaNet (*)(const Weights& weights,
                                            const ModelConfig& config,
                                            const GatedDeltaNetConfig& linear);

/// The token mixer of an absolute layer; `weights` stands at the layer's prefix.
TokenMixer load_hybrid_mixer(const ModelConfig& config,
                             const Weights& weights,
                             int64_t layer,
                             LoadGatedDeltaNet load_gated_delta_net);

LayerGeometry hybrid_geometry(const ModelConfig& config, int64_t layer);

/// The fields that both families have, for the model's fingerprint. Throws std::runtime_error
/// naming file, key, expected and got.
nlohmann::json hybrid_extras(const ModelConfig& config);

}  // namespace meshnet
