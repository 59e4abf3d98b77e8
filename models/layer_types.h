#pragma once

#include <cstdint>

#include "models/config.h"

namespace meshnet {

/// What layer_types of config.json says of an absolute layer; `fallback` where the file has none.
/// Throws std::runtime_error for a list of another length or with a type that is not known.
LayerType listed_layer_type(const ModelConfig& config, int64_t layer, LayerType fallback);

/// Qwen's rule: without use_sliding_window every layer is full; else as listed, or sliding from
/// max_window_layers on.
LayerType windowed_layer_type(const ModelConfig& config, int64_t layer);

/// Hybrid Qwen's rule: as listed, or full attention in every full_attention_interval-th layer.
LayerType hybrid_layer_type(const ModelConfig& config, int64_t layer);

}  // namespace meshnet
