#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "models/config.h"
#include "models/layers/moe.h"

namespace meshnet {

/// The fields of a mixture of experts. `norm_topk_prob` holds where the file does not say. Throws
/// std::runtime_error naming file, key, expected and got.
MoeConfig read_moe_config(const ModelConfig& config, bool norm_topk_prob, bool shared_expert);

/// Whether an absolute layer is a mixture of experts, by decoder_sparse_step and mlp_only_layers;
/// the others have a dense MLP.
bool is_sparse_layer(const ModelConfig& config, int64_t layer);

/// All of it, for the model's fingerprint.
nlohmann::json fingerprint_values(const ModelConfig& config, const MoeConfig& moe);

}  // namespace meshnet
