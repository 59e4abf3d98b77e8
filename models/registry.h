#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cache/layer_geometry.h"
#include "models/block.h"
#include "models/config.h"

namespace meshnet {

class Weights;

/// What one file of arch/ has to offer.
struct Architecture {
  std::string_view model_type;
  /// How an absolute layer mixes tokens; nullptr = full attention in all.
  LayerType (*layer_type)(const ModelConfig& config, int64_t layer) = nullptr;
  RopeDefaults rope_defaults = {};
  /// What its configuration class has where the file does not say. 0 = hidden_size /
  /// num_attention_heads.
  int64_t default_head_dim = 0;
  bool default_tie_word_embeddings = false;
  bool always_experts = false;     ///< no layer has a dense MLP: there is no intermediate_size
  bool zero_centred_norm = false;  ///< of the final norm
  bool scaled_embedding = false;   ///< embeddings × sqrt(hidden_size)
  /// What its block reads beyond ModelConfig, checked and with defaults filled in: part of the
  /// model's fingerprint. Throws std::runtime_error naming file, key, expected and got.
  nlohmann::json (*extras)(const ModelConfig& config);
  /// The state that its block keeps at an absolute layer.
  LayerGeometry (*layer_geometry)(const ModelConfig& config, int64_t layer);
  /// Loads one decoder layer; `weights` stands at its prefix. `layer` is absolute.
  std::unique_ptr<Block> (*make_block)(const ModelConfig& config,
                                       const Weights& weights,
                                       int64_t layer);
};

/// The entry of the table for a config's model_type; nullptr where there is none.
const Architecture* find_architecture(std::string_view model_type);
/// The model_types of the table, for messages: "llama, qwen2".
std::string supported_architectures();

}  // namespace meshnet
