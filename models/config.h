#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/quantization.h"
#include "models/rope_parameters.h"

namespace meshnet {

/// How a layer mixes tokens: over all it has seen, over a window of it, or by recurrent state.
enum class LayerType { kFull, kSliding, kLinear };

/// The fields of config.json that every architecture has, spelled as in Hugging Face. An
/// architecture reads its own extras from `raw`.
struct ModelConfig {
  std::filesystem::path path;  ///< of config.json, for messages
  std::string model_type;      ///< "llama", ...
  std::string torch_dtype;     ///< what the checkpoint is stored in ("dtype" or "torch_dtype"):
                               ///< "float32" (also where the file does not say), "bfloat16" or
                               ///< "float16"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  ///< 0 where all layers are mixtures of experts
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  ///< num_attention_heads where the file does not say
  int64_t head_dim = 0;  ///< the architecture's own, or hidden_size / num_attention_heads, where
                         ///< the file does not say
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0.0;
  bool tie_word_embeddings = false;
  std::vector<LayerType> layer_types;  ///< of every layer
  int64_t sliding_window = 0;  ///< tokens that a sliding layer sees, the newest among them; 0 where
                               ///< no layer slides
  RopeParameters rope_parameters;
  std::optional<RopeParameters> sliding_rope_parameters;  ///< where sliding_attention layers have
                                                          ///< parameters of their own
  std::vector<int64_t> eos_token_id;
  std::optional<Fp8Blocks> fp8_blocks;  ///< of the file's FP8 weights; nothing: they are plain
  std::shared_ptr<const nlohmann::json> raw;  ///< the whole file; of a multimodal one, its
                                              ///< text_config
};

/// Reads DIR/config.json. Throws std::runtime_error naming file, key, expected and got; lists the
/// supported architectures for an unknown model_type; names the method of a quantised checkpoint.
ModelConfig read_config(const std::filesystem::path& model_dir);

/// 16 hex digits over the parsed values that decide the arithmetic, not over file bytes: nodes may
/// hold only their own weight files, and one model is written differently by different tool
/// versions. Neither dtype nor the length limit is in it.
std::string fingerprint(const ModelConfig& config);

}  // namespace meshnet
