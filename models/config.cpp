#include "models/config.h"

#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/json_reader.h"
#include "models/registry.h"

namespace meshnet {
namespace {

// As kMaxSize.
constexpr int64_t kMaxVocab = int64_t{1} << 24;

nlohmann::json parse_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path.string() +
                             ": cannot be read; `model` must be a Hugging Face directory "
                             "(config.json, *.safetensors, tokenizer.json)");
  }
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw std::runtime_error(path.string() + ": not JSON: " + error.what());
  }
}

std::string read_dtype(const JsonReader& file) {
  const std::string key = file.has("dtype") ? "dtype" : "torch_dtype";
  const std::string dtype = file.string_or(key, "float32");
  if (dtype != "float32" && dtype != "bfloat16" && dtype != "float16") {
    file.fail(key, "float32, bfloat16 or float16");
  }
  return dtype;
}

std::vector<int64_t> read_eos_token_id(const JsonReader& file, int64_t vocab_size) {
  const std::string key = "eos_token_id";
  if (!file.has(key)) return {};
  const nlohmann::json& value = file.value().at(key);
  if (!value.is_array()) return {file.integer(key, 0, vocab_size - 1)};
  std::vector<int64_t> ids;
  for (const auto& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      file.fail(key, "token ids below vocab_size " + std::to_string(vocab_size));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

void read_heads(const JsonReader& file, int64_t default_head_dim, ModelConfig& config) {
  config.num_attention_heads = file.integer("num_attention_heads", 1, kMaxSize);
  config.num_key_value_heads =
      file.integer_or("num_key_value_heads", config.num_attention_heads, 1, kMaxSize);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    file.fail("num_key_value_heads",
              "a divisor of num_attention_heads " + std::to_string(config.num_attention_heads));
  }
  if (!file.has("head_dim") && default_head_dim == 0 &&
      config.hidden_size % config.num_attention_heads != 0) {
    file.fail("num_attention_heads",
              "a divisor of hidden_size " + std::to_string(config.hidden_size) +
                  ", since head_dim is not given");
  }
  config.head_dim = file.integer_or(
      "head_dim",
      default_head_dim > 0 ? default_head_dim : config.hidden_size / config.num_attention_heads,
      1,
      kMaxSize);
  if (config.head_dim % 2 != 0) file.fail("head_dim", "an even number (rotary embedding)");
}

void read_layer_types(const JsonReader& file,
                      const Architecture& architecture,
                      ModelConfig& config) {
  bool slides = false;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const LayerType type =
        architecture.layer_type ? architecture.layer_type(config, layer) : LayerType::kFull;
    config.layer_types.push_back(type);
    slides = slides || type == LayerType::kSliding;
  }
  if (slides) config.sliding_window = file.integer_or("sliding_window", 4096, 1, kMaxPositions);
}

/// The text model's part of a multimodal model's file: its text_config, with what only the outer
/// object says. Any other file as it is.
nlohmann::json text_part(nlohmann::json file, const std::string& where) {
  const JsonReader outer(file, where);
  const std::string model_type = outer.string("model_type");
  const auto inner = outer.object("text_config");
  if (!inner || !find_architecture(model_type + "_text")) return file;
  nlohmann::json text = inner->value();
  for (const char* key :
       {"dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings", "quantization_config"}) {
    if (outer.has(key)) text[key] = file.at(key);
  }
  if (!inner->has("model_type")) text["model_type"] = model_type + "_text";
  return text;
}

}  // namespace

ModelConfig read_config(const std::filesystem::path& model_dir) {
  ModelConfig config;
  config.path = model_dir / "config.json";
  config.raw = std::make_shared<const nlohmann::json>(
      text_part(parse_file(config.path), config.path.string()));
  const JsonReader file(*config.raw, config.path.string());

  config.model_type = file.string("model_type");
  if (!find_architecture(config.model_type)) {
    file.fail("model_type", "one of those supported: " + supported_architectures());
  }
  const Architecture& architecture = *find_architecture(config.model_type);
  config.fp8_blocks = read_quantization(file);
  config.torch_dtype = read_dtype(file);
  config.vocab_size = file.integer("vocab_size", 1, kMaxVocab);
  config.hidden_size = file.integer("hidden_size", 1, kMaxSize);
  config.intermediate_size =
      architecture.always_experts ? 0 : file.integer("intermediate_size", 1, kMaxSize);
  config.num_hidden_layers = file.integer("num_hidden_layers", 1, kMaxSize);
  read_heads(file, architecture.default_head_dim, config);
  config.max_position_embeddings = file.integer("max_position_embeddings", 1, kMaxPositions);
  config.rms_norm_eps = file.positive("rms_norm_eps");
  config.tie_word_embeddings =
      file.boolean_or("tie_word_embeddings", architecture.default_tie_word_embeddings);
  config.rope_parameters = read_rope_parameters(
      file, architecture.rope_defaults, config.head_dim, config.max_position_embeddings);
  config.sliding_rope_parameters = read_sliding_rope_parameters(
      file, architecture.rope_defaults, config.head_dim, config.max_position_embeddings);
  config.eos_token_id = read_eos_token_id(file, config.vocab_size);
  read_layer_types(file, architecture, config);
  architecture.extras(config);  // so that a bad extra fails here already
  return config;
}

std::string fingerprint(const ModelConfig& config) {
  // Floating-point values count as float32: that is what the arithmetic sees, and tools write the
  // same epsilon as 1e-05 or 9.999999747378752e-06.
  std::vector<int> layer_types;
  for (const LayerType type : config.layer_types) layer_types.push_back(static_cast<int>(type));
  const nlohmann::json values{
      {"model_type", config.model_type},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"rms_norm_eps", as_float(config.rms_norm_eps)},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"layer_types", layer_types},
      {"sliding_window", config.sliding_window},
      {"rope_parameters", fingerprint_values(config.rope_parameters)},
      {"sliding_rope_parameters",
       config.sliding_rope_parameters ? fingerprint_values(*config.sliding_rope_parameters)
                                      : nlohmann::json()},
      {"extras", find_architecture(config.model_type)->extras(config)}};
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a; dump() sorts the keys
  for (const char c : values.dump()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

}  // namespace meshnet
