#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layer_geometry.h"
#include "cache/layer_range.h"
#include "cache/slice_cache.h"

namespace meshnet {

/// What decides how a session's state looks. `layers` are those of the whole model, so that all
/// nodes of a fleet compute one fingerprint.
struct RecipeFields {
  std::string architecture;  ///< a config's model_type or one of its architectures
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  std::vector<LayerGeometry> layers;
  at::ScalarType dtype = at::kFloat;
  LayerRange owned;
};

/// How the state of a session is made, and what it costs. Only for architectures whose cached
/// decode is certified to give the tokens of a stateless run.
class Recipe {
 public:
  /// Throws std::invalid_argument for an architecture that is not on the certified list, naming the
  /// list, and for owned layers outside the model.
  explicit Recipe(RecipeFields fields);

  /// The model_type that a name stands for: "llama" for "LlamaForCausalLM"; unknown names are
  /// returned as they are.
  static std::string canonical(std::string_view architecture);
  static bool is_certified(std::string_view architecture);

  /// 16 hex digits over architecture, head and state geometry; dtype and owned range, which differ
  /// between honest nodes, are left out.
  std::string fingerprint() const;
  /// Whether state made by the other recipe means the same here: fingerprint, dtype and range.
  bool is_compatible(const Recipe& other) const;

  LayerRange owned() const { return fields_.owned; }
  const std::string& architecture() const { return fields_.architecture; }
  at::ScalarType dtype() const { return fields_.dtype; }

  /// Of one session over the owned layers from `start_layer` on; these and make_cache() throw
  /// std::out_of_range for a layer that is not owned.
  int64_t bytes_per_token(int64_t start_layer) const;
  int64_t fixed_bytes(int64_t start_layer) const;
  /// Exactly what a SliceCache holds that has taken up `tokens`.
  int64_t nbytes(int64_t start_layer, int64_t tokens) const;

  /// The empty state of a session over the owned layers from `start_layer` on.
  SliceCache make_cache(int64_t start_layer, at::Device device) const;

 private:
  RecipeFields fields_;
};

}  // namespace meshnet
