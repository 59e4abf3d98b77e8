#include "models/moe_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "models/json_reader.h"

namespace meshnet {

MoeConfig read_moe_config(const ModelConfig& config, bool norm_topk_prob, bool shared_expert) {
  const JsonReader file(*config.raw, config.path.string());
  MoeConfig moe{};
  moe.hidden_size = config.hidden_size;
  // transformers 5 writes Qwen3-MoE's under another name.
  const char* num_experts = file.has("num_experts") ? "num_experts" : "num_local_experts";
  moe.num_experts = file.integer(num_experts, 1, kMaxSize);
  moe.num_experts_per_tok = file.integer("num_experts_per_tok", 1, moe.num_experts);
  moe.moe_intermediate_size = file.integer("moe_intermediate_size", 1, kMaxSize);
  if (shared_expert) {
    moe.shared_expert_intermediate_size =
        file.integer("shared_expert_intermediate_size", 1, kMaxSize);
  }
  moe.norm_topk_prob = file.boolean_or("norm_topk_prob", norm_topk_prob);
  return moe;
}

bool is_sparse_layer(const ModelConfig& config, int64_t layer) {
  const JsonReader file(*config.raw, config.path.string());
  const int64_t step = file.integer_or("decoder_sparse_step", 1, 1, kMaxSize);
  if ((layer + 1) % step != 0) return false;
  if (!file.has("mlp_only_layers")) return true;
  const nlohmann::json& dense = file.value().at("mlp_only_layers");
  if (!dense.is_array()) file.fail("mlp_only_layers", "a list of layers");
  return std::find(dense.begin(), dense.end(), layer) == dense.end();
}

nlohmann::json fingerprint_values(const ModelConfig& config, const MoeConfig& moe) {
  std::vector<int64_t> sparse;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    if (is_sparse_layer(config, layer)) sparse.push_back(layer);
  }
  return {{"num_experts", moe.num_experts},
          {"num_experts_per_tok", moe.num_experts_per_tok},
          {"moe_intermediate_size", moe.moe_intermediate_size},
          {"shared_expert_intermediate_size", moe.shared_expert_intermediate_size},
          {"norm_topk_prob", moe.norm_topk_prob},
          {"sparse_layers", sparse}};
}

}  // namespace meshnet
