#include "models/rope_parameters.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/json_reader.h"
#include "models/log.h"

namespace meshnet {
namespace {

constexpr const char* kFullAttention = "full_attention";
constexpr const char* kSlidingAttention = "sliding_attention";
constexpr const char* kOriginal = "original_max_position_embeddings";

/// Where the values of one kind of layer stand, and what they are checked against.
struct Source {
  const JsonReader& file;
  std::optional<JsonReader> object;  ///< in it
  const RopeDefaults& defaults;
  int64_t head_dim;
  int64_t max_position_embeddings;
};

/// The object with the rope values: rope_parameters, or its older name rope_scaling.
std::optional<JsonReader> find_rope_object(const JsonReader& file) {
  const auto parameters = file.object("rope_parameters");
  const auto scaling = file.object("rope_scaling");
  if (!parameters) return scaling;
  if (scaling && scaling->value() != parameters->value()) {
    throw std::runtime_error(file.where() +
                             ": rope_parameters and rope_scaling are both given and differ: "
                             "keep one of them");
  }
  return parameters;
}

std::optional<JsonReader> find_object_of_all_layers(const JsonReader& file) {
  const auto rope = find_rope_object(file);
  if (!rope) return std::nullopt;
  for (const auto& [key, value] : rope->value().items()) {
    if (value.is_object()) {
      throw std::runtime_error(rope->where() + ": " + key +
                               ": parameters per layer type are not supported for this model_type");
    }
  }
  return rope;
}

/// One object per layer type (transformers 5), or a rope_scaling that is of full_attention layers
/// alone (transformers 4).
std::optional<JsonReader> find_object_of(const std::string& layer_type, const JsonReader& file) {
  const auto rope = find_rope_object(file);
  if (!rope) return std::nullopt;
  if (!file.has("rope_parameters")) {
    return layer_type == kFullAttention ? rope : std::nullopt;
  }
  for (const auto& [key, value] : rope->value().items()) {
    if (key != kFullAttention && key != kSlidingAttention) {
      file.fail("rope_parameters", "an object with full_attention and sliding_attention");
    }
  }
  return rope->object(layer_type);
}

/// `top_level_key` is that of the transformers 4 form.
double read_rope_theta(const Source& source,
                       const std::string& top_level_key,
                       double default_theta) {
  const JsonReader& file = source.file;
  const double top_level = file.positive_or(top_level_key, default_theta);
  if (!source.object || !source.object->has("rope_theta")) return top_level;
  const double theta = source.object->positive("rope_theta");
  if (file.has(top_level_key) && theta != top_level) {
    log_warning(file.where() + ": " + top_level_key + " is " + as_float(top_level) +
                " at top level but " + as_float(theta) +
                " inside rope_parameters: the one inside is used");
  }
  return theta;
}

double read_partial_rotary_factor(const Source& source) {
  const std::string key = "partial_rotary_factor";
  const JsonReader& reader =
      source.object && source.object->has(key) ? *source.object : source.file;
  const double factor =
      reader.positive_or(key, source.defaults.partial_rotary_factor.value_or(1.0));
  if (factor == 1.0) return factor;
  if (!source.defaults.partial_rotary_factor) {
    reader.fail(key, "1.0 (partial rotary is not supported for this model_type)");
  }
  const int64_t dim =
      factor < 1.0 ? rotary_dim({.partial_rotary_factor = factor}, source.head_dim) : 0;
  if (dim < 2 || dim % 2 != 0) {
    reader.fail(
        key,
        "a number up to 1 that makes an even part of head_dim " + std::to_string(source.head_dim));
  }
  return factor;
}

/// Some files have it at top level, and transformers lets that one win.
int64_t read_original_max_position_embeddings(const Source& source, int64_t min) {
  const JsonReader& reader = source.file.has(kOriginal) ? source.file : *source.object;
  return reader.integer_or(kOriginal, source.max_position_embeddings, min, kMaxPositions);
}

/// The factor by which the context grew.
double read_growth(const Source& source, int64_t original) {
  return source.object->positive_or(
      "factor",
      static_cast<double>(source.max_position_embeddings) / static_cast<double>(original));
}

void read_llama3(const Source& source, RopeParameters& rope) {
  const JsonReader& object = *source.object;
  rope.factor = object.positive("factor");
  rope.low_freq_factor = object.positive("low_freq_factor");
  rope.high_freq_factor = object.positive("high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    object.fail("high_freq_factor", "a number above low_freq_factor");
  }
  rope.original_max_position_embeddings = read_original_max_position_embeddings(source, 1);
}

/// _compute_yarn_parameters of transformers' modeling_rope_utils.py.
double yarn_attention_factor(const JsonReader& object, double factor) {
  const auto scaled = [factor](double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  const bool both = object.has("mscale") && object.has("mscale_all_dim");
  const double by_formula =
      both ? scaled(object.positive("mscale")) / scaled(object.positive("mscale_all_dim"))
           : scaled(1.0);
  return object.positive_or("attention_factor", by_formula);
}

void read_yarn(const Source& source, RopeParameters& rope) {
  const JsonReader& object = *source.object;
  if (rope.rope_theta <= 1.0) {
    throw std::runtime_error(object.where() + ": rope_theta: expected a number above 1 for yarn");
  }
  rope.original_max_position_embeddings = read_original_max_position_embeddings(source, 1);
  rope.factor = read_growth(source, rope.original_max_position_embeddings);
  rope.beta_fast = object.positive_or("beta_fast", rope.beta_fast);
  rope.beta_slow = object.positive_or("beta_slow", rope.beta_slow);
  if (rope.beta_fast < rope.beta_slow) object.fail("beta_fast", "a number not below beta_slow");
  rope.truncate = object.boolean_or("truncate", rope.truncate);
  rope.attention_factor = yarn_attention_factor(object, rope.factor);
}

/// One number above 0 for each frequency.
std::vector<double> read_factors(const JsonReader& object,
                                 const std::string& key,
                                 int64_t frequencies) {
  const std::string expected = "a list of " + std::to_string(frequencies) + " numbers above 0";
  if (!object.has(key)) object.fail(key, expected);
  const nlohmann::json& list = object.value().at(key);
  if (!list.is_array() || list.size() != static_cast<std::size_t>(frequencies)) {
    object.fail(key, expected);
  }
  std::vector<double> factors;
  for (const nlohmann::json& number : list) {
    if (!number.is_number() || !(number.get<double>() > 0.0)) object.fail(key, expected);
    factors.push_back(number.get<double>());
  }
  return factors;
}

/// _compute_longrope_parameters of transformers' modeling_rope_utils.py, but for the choice between
/// the two lists.
void read_longrope(const Source& source, RopeParameters& rope) {
  const JsonReader& object = *source.object;
  const int64_t original = read_original_max_position_embeddings(source, 2);
  const double factor = read_growth(source, original);
  const double by_formula =
      factor <= 1.0 ? 1.0
                    : std::sqrt(1.0 + std::log(factor) / std::log(static_cast<double>(original)));
  rope.attention_factor = object.positive_or("attention_factor", by_formula);
  const int64_t frequencies = rotary_dim(rope, source.head_dim) / 2;
  const auto short_factor = read_factors(object, "short_factor", frequencies);
  const auto long_factor = read_factors(object, "long_factor", frequencies);
  rope.ext_factors = source.max_position_embeddings > original ? long_factor : short_factor;
}

RopeParameters read(const Source& source, double rope_theta) {
  RopeParameters rope;
  rope.rope_theta = rope_theta;
  rope.partial_rotary_factor = read_partial_rotary_factor(source);
  if (!source.object) return rope;
  const std::string key = source.object->has("rope_type") ? "rope_type" : "type";
  rope.rope_type = source.object->string_or(key, rope.rope_type);
  if (rope.rope_type == "dynamic") {
    source.object->positive("factor");
    rope.rope_type = "default";
  } else if (rope.rope_type == "linear") {
    rope.factor = source.object->positive("factor");
  } else if (rope.rope_type == "llama3") {
    read_llama3(source, rope);
  } else if (rope.rope_type == "yarn") {
    read_yarn(source, rope);
  } else if (rope.rope_type == "longrope") {
    read_longrope(source, rope);
  } else if (rope.rope_type != "default") {
    source.object->fail(key,
                        "default, linear, dynamic, llama3, yarn or longrope (no other rope type "
                        "is supported)");
  }
  return rope;
}

}  // namespace

RopeParameters read_rope_parameters(const JsonReader& file,
                                    const RopeDefaults& defaults,
                                    int64_t head_dim,
                                    int64_t max_position_embeddings) {
  const Source source{file,
                      defaults.sliding_rope_theta ? find_object_of(kFullAttention, file)
                                                  : find_object_of_all_layers(file),
                      defaults,
                      head_dim,
                      max_position_embeddings};
  return read(source, read_rope_theta(source, "rope_theta", defaults.rope_theta));
}

std::optional<RopeParameters> read_sliding_rope_parameters(const JsonReader& file,
                                                           const RopeDefaults& defaults,
                                                           int64_t head_dim,
                                                           int64_t max_position_embeddings) {
  if (!defaults.sliding_rope_theta) return std::nullopt;
  const Source source{
      file, find_object_of(kSlidingAttention, file), defaults, head_dim, max_position_embeddings};
  return read(source,
              read_rope_theta(source, "rope_local_base_freq", *defaults.sliding_rope_theta));
}

int64_t rotary_dim(const RopeParameters& rope, int64_t head_dim) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rope.partial_rotary_factor);
}

nlohmann::json fingerprint_values(const RopeParameters& rope) {
  nlohmann::json ext_factors = nlohmann::json::array();
  for (const double factor : rope.ext_factors) ext_factors.push_back(as_float(factor));
  return {{"rope_type", rope.rope_type},
          {"rope_theta", as_float(rope.rope_theta)},
          {"partial_rotary_factor", as_float(rope.partial_rotary_factor)},
          {"factor", as_float(rope.factor)},
          {"low_freq_factor", as_float(rope.low_freq_factor)},
          {"high_freq_factor", as_float(rope.high_freq_factor)},
          {"original_max_position_embeddings", rope.original_max_position_embeddings},
          {"beta_fast", as_float(rope.beta_fast)},
          {"beta_slow", as_float(rope.beta_slow)},
          {"truncate", rope.truncate},
          {"attention_factor", as_float(rope.attention_factor)},
          {"ext_factors", ext_factors}};
}

}  // namespace meshnet
