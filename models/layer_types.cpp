#include "models/layer_types.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "models/json_reader.h"

namespace meshnet {
namespace {

constexpr int64_t kMax = std::numeric_limits<int32_t>::max();

}  // namespace

LayerType listed_layer_type(const ModelConfig& config, int64_t layer, LayerType fallback) {
  const JsonReader file(*config.raw, config.path.string());
  if (!file.has("layer_types")) return fallback;
  const nlohmann::json& types = file.value().at("layer_types");
  if (!types.is_array() || std::ssize(types) != config.num_hidden_layers) {
    file.fail("layer_types",
              "one type for each of " + std::to_string(config.num_hidden_layers) + " layers");
  }
  const nlohmann::json& type = types[static_cast<std::size_t>(layer)];
  if (type == "full_attention") return LayerType::kFull;
  if (type == "sliding_attention") return LayerType::kSliding;
  if (type == "linear_attention") return LayerType::kLinear;
  file.fail("layer_types", "full_attention, sliding_attention or linear_attention");
}

LayerType windowed_layer_type(const ModelConfig& config, int64_t layer) {
  const JsonReader file(*config.raw, config.path.string());
  if (!file.boolean_or("use_sliding_window", false)) return LayerType::kFull;
  const int64_t max_window_layers = file.integer_or("max_window_layers", 28, 0, kMax);
  return listed_layer_type(
      config, layer, layer >= max_window_layers ? LayerType::kSliding : LayerType::kFull);
}

LayerType hybrid_layer_type(const ModelConfig& config, int64_t layer) {
  const JsonReader file(*config.raw, config.path.string());
  const int64_t interval = file.integer_or("full_attention_interval", 4, 1, kMax);
  return listed_layer_type(
      config, layer, (layer + 1) % interval == 0 ? LayerType::kFull : LayerType::kLinear);
}

}  // namespace meshnet
