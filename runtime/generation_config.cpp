#include "runtime/generation_config.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

namespace meshnet {
namespace {

using nlohmann::json;

/// Larger than any vocabulary; what the wire takes (meta.cpp).
constexpr int64_t kMaxTopK = int64_t{1} << 31;

/// The file as an object; empty when there is no such file.
json read_object(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return json::object();
  std::ifstream in(file);
  if (!in) throw std::runtime_error(fmt::format("{}: cannot be read", file.string()));
  try {
    auto value = json::parse(in);
    if (!value.is_object())
      throw std::runtime_error(fmt::format("{}: expected a JSON object", file.string()));
    return value;
  } catch (const json::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", file.string(), error.what()));
  }
}

/// A number of the file where it has one; null and absent are the same.
template <class Number>
void read_number(const json& object,
                 const std::filesystem::path& file,
                 const char* key,
                 Number low,
                 Number high,
                 Number& value) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return;
  const double number = found->is_number() ? found->get<double>() : std::nan("");
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high))) {
    throw std::runtime_error(
        fmt::format("{}: {}: expected a number in [{}, {}]", file.string(), key, low, high));
  }
  value = found->get<Number>();
}

/// One id or a list of them.
void add_ids(std::vector<int64_t>& ids, const json& value, const std::filesystem::path& file) {
  if (value.is_null()) return;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0) {
      throw std::runtime_error(
          fmt::format("{}: eos_token_id: expected a token id or a list of them", file.string()));
    }
    ids.push_back(id.get<int64_t>());
  }
}

/// tokenizer_config.json writes a special token as a string or as an object with "content".
void add_eos_token(std::vector<int64_t>& ids,
                   const json& tokenizer_config,
                   const Tokenizer& tokenizer) {
  json token = tokenizer_config.value("eos_token", json());
  if (token.is_object()) token = token.value("content", json());
  if (!token.is_string()) return;
  if (const auto id = tokenizer.token_to_id(token.get<std::string>())) ids.push_back(*id);
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& model_dir,
                                        const ModelConfig& config,
                                        const Tokenizer& tokenizer) {
  const auto file = model_dir / "generation_config.json";
  const json object = read_object(file);

  GenerationConfig result;
  read_number(object, file, "temperature", 0.0, 100.0, result.temperature);
  read_number<int64_t>(object, file, "top_k", -1, kMaxTopK, result.top_k);
  read_number(object, file, "top_p", 0.0, 1.0, result.top_p);
  double repetition_penalty = 1.0;
  read_number(object, file, "repetition_penalty", 0.0, 100.0, repetition_penalty);
  if (repetition_penalty != 1.0) {
    spdlog::warn("{}: repetition_penalty {} is not applied: this version has no penalties",
                 file.string(),
                 repetition_penalty);
  }

  auto& ids = result.eos_token_ids;
  ids = config.eos_token_id;
  add_ids(ids, object.value("eos_token_id", json()), file);
  add_eos_token(ids, read_object(model_dir / "tokenizer_config.json"), tokenizer);
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return result;
}

SamplingParams resolve_sampling(const SamplingRequest& request, const GenerationConfig& defaults) {
  SamplingParams params;
  params.temperature = request.temperature.value_or(defaults.temperature);
  params.top_k =
      std::clamp<int64_t>(request.top_k.value_or(defaults.top_k), 0, kMaxTopK);  // -1 is off, too
  params.top_p = request.top_p.value_or(defaults.top_p);
  params.seed = request.seed ? *request.seed : std::random_device{}();
  return params;
}

}  // namespace meshnet
