#include "cache/recipe.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace meshnet {
namespace {

struct Certified {
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array kCertified{
    Certified{"gemma3_text", "Gemma3ForCausalLM"},
    Certified{"llama", "LlamaForCausalLM"},
    Certified{"mistral", "MistralForCausalLM"},
    Certified{"qwen2", "Qwen2ForCausalLM"},
    Certified{"qwen3", "Qwen3ForCausalLM"},
    Certified{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
    Certified{"qwen3_5_text", "Qwen3_5ForCausalLM"},
    Certified{"qwen3_moe", "Qwen3MoeForCausalLM"},
    Certified{"qwen3_next", "Qwen3NextForCausalLM"},
};

std::string certified_list() {
  std::string list;
  for (const Certified& entry : kCertified) {
    if (!list.empty()) list += ", ";
    list += entry.model_type;
  }
  return list;
}

std::string text_of(const LayerGeometry& geometry) {
  const auto join = [](std::string text, std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) text += ' ' + std::to_string(size);
    return text + '\n';
  };
  if (const auto* full = std::get_if<KvGeometry>(&geometry)) {
    return join("kv", {full->num_key_value_heads, full->head_dim});
  }
  if (const auto* sliding = std::get_if<SlidingKvGeometry>(&geometry)) {
    return join("sliding_kv",
                {sliding->num_key_value_heads, sliding->head_dim, sliding->sliding_window});
  }
  const auto& recurrent = std::get<RecurrentGeometry>(geometry);
  return join("recurrent",
              {recurrent.conv_dim,
               recurrent.conv_kernel_size,
               recurrent.num_v_heads,
               recurrent.head_k_dim,
               recurrent.head_v_dim});
}

void check_start(LayerRange owned, int64_t start_layer) {
  if (owned.contains(start_layer)) return;
  throw std::out_of_range("start layer: expected one of " + to_string(owned) + ", got " +
                          std::to_string(start_layer));
}

/// Sum of `bytes(layer)` over the owned layers from `start_layer` on.
template <typename Bytes>
int64_t sum(const RecipeFields& fields, int64_t start_layer, const Bytes& bytes) {
  check_start(fields.owned, start_layer);
  int64_t total = 0;
  for (int64_t layer = start_layer; layer < fields.owned.last; ++layer) {
    total += bytes(fields.layers[static_cast<std::size_t>(layer)]);
  }
  return total;
}

}  // namespace

Recipe::Recipe(RecipeFields fields) : fields_(std::move(fields)) {
  if (!is_certified(fields_.architecture)) {
    throw std::invalid_argument("no cached decode for architecture \"" + fields_.architecture +
                                "\": it is certified for " + certified_list());
  }
  fields_.architecture = canonical(fields_.architecture);
  const LayerRange owned = fields_.owned;
  const auto layers = static_cast<int64_t>(fields_.layers.size());
  if (owned.first < 0 || owned.last > layers || owned.size() < 1) {
    throw std::invalid_argument("owned layers: expected some of [0, " + std::to_string(layers) +
                                "), got [" + std::to_string(owned.first) + ", " +
                                std::to_string(owned.last) + ")");
  }
}

std::string Recipe::canonical(std::string_view architecture) {
  for (const Certified& entry : kCertified) {
    if (architecture == entry.architecture) return std::string(entry.model_type);
  }
  return std::string(architecture);
}

bool Recipe::is_certified(std::string_view architecture) {
  return std::any_of(kCertified.begin(), kCertified.end(), [&](const Certified& entry) {
    return architecture == entry.model_type || architecture == entry.architecture;
  });
}

std::string Recipe::fingerprint() const {
  std::string values = fields_.architecture + "\nheads " +
                       std::to_string(fields_.num_attention_heads) + ' ' +
                       std::to_string(fields_.head_dim) + '\n';
  for (const LayerGeometry& layer : fields_.layers) values += text_of(layer);
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : values) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

bool Recipe::is_compatible(const Recipe& other) const {
  return fingerprint() == other.fingerprint() && dtype() == other.dtype() &&
         owned() == other.owned();
}

int64_t Recipe::bytes_per_token(int64_t start_layer) const {
  return sum(fields_, start_layer, [&](const LayerGeometry& layer) {
    return meshnet::bytes_per_token(layer, fields_.dtype);
  });
}

int64_t Recipe::fixed_bytes(int64_t start_layer) const {
  return sum(fields_, start_layer, [&](const LayerGeometry& layer) {
    return meshnet::fixed_bytes(layer, fields_.dtype);
  });
}

int64_t Recipe::nbytes(int64_t start_layer, int64_t tokens) const {
  return sum(fields_, start_layer, [&](const LayerGeometry& layer) {
    return meshnet::nbytes(layer, fields_.dtype, tokens);
  });
}

SliceCache Recipe::make_cache(int64_t start_layer, at::Device device) const {
  check_start(owned(), start_layer);
  std::vector<LayerCache> caches;
  for (int64_t layer = start_layer; layer < owned().last; ++layer) {
    caches.push_back(
        make_layer_cache(fields_.layers[static_cast<std::size_t>(layer)], fields_.dtype, device));
  }
  return SliceCache({start_layer, owned().last}, std::move(caches));
}

}  // namespace meshnet
