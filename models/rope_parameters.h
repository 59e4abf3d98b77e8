#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace meshnet {

class JsonReader;

/// What decides the rotary frequencies, named as in rope_parameters of config.json. Fields that the
/// rope_type does not use keep their defaults, whatever the file says.
struct RopeParameters {
  /// "default", "linear", "llama3", "yarn" or "longrope". A "dynamic" of the file is "default"
  /// here: it stretches the base only past max_position_embeddings, where nothing is served.
  std::string rope_type = "default";
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;            ///< the share of each head that is rotated
  double factor = 1.0;                           ///< linear, llama3, yarn
  double low_freq_factor = 1.0;                  ///< llama3
  double high_freq_factor = 4.0;                 ///< llama3
  int64_t original_max_position_embeddings = 0;  ///< llama3, yarn
  double beta_fast = 32.0;                       ///< yarn
  double beta_slow = 1.0;                        ///< yarn
  bool truncate = true;                          ///< yarn
  /// yarn, longrope: the file's, else by formula. Cosines and sines are multiplied by it.
  double attention_factor = 1.0;
  /// longrope: its long_factor or its short_factor, one number per frequency. Which one is decided
  /// here and once, by max_position_embeddings: keys that were rotated by one set are of no use to
  /// queries that are rotated by the other.
  // NOLINTNEXTLINE(readability-redundant-member-init): GCC wants it where a label leaves it out
  std::vector<double> ext_factors = {};
};

/// What holds for a family of models where config.json does not say, and which forms it may take.
struct RopeDefaults {
  double rope_theta = 10000.0;
  /// Of families that may rotate a part of each head; the others refuse any share but 1.
  std::optional<double> partial_rotary_factor = std::nullopt;
  /// Of families whose sliding_attention layers have parameters of their own.
  std::optional<double> sliding_rope_theta = std::nullopt;
};

/// Of the full_attention layers, or of all layers where the family makes no difference:
/// rope_parameters (transformers 5), or rope_theta and rope_scaling (transformers 4). `file` is the
/// whole config.json. Throws std::runtime_error naming file, key, expected and got.
RopeParameters read_rope_parameters(const JsonReader& file,
                                    const RopeDefaults& defaults,
                                    int64_t head_dim,
                                    int64_t max_position_embeddings);

/// Of the sliding_attention layers, in families where these have their own: below rope_parameters,
/// or rope_local_base_freq (transformers 4).
std::optional<RopeParameters> read_sliding_rope_parameters(const JsonReader& file,
                                                           const RopeDefaults& defaults,
                                                           int64_t head_dim,
                                                           int64_t max_position_embeddings);

/// The rotated numbers of each head: int(head_dim * partial_rotary_factor), as in transformers.
int64_t rotary_dim(const RopeParameters& rope, int64_t head_dim);

/// All fields, for the model's fingerprint.
nlohmann::json fingerprint_values(const RopeParameters& rope);

}  // namespace meshnet
