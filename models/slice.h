#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "cache/layer_range.h"
#include "cache/recipe.h"
#include "models/block.h"
#include "models/config.h"
#include "models/layers/linear.h"
#include "models/layers/rms_norm.h"
#include "models/rope.h"

namespace meshnet {

/// Layers [first, last) of a model, with the embedding where layer 0 is owned and the final norm
/// and lm_head where the last layer is. Constructing is loading. Layer numbers are absolute; the
/// subtraction of `first` happens in block() alone. Calls must come from one thread at a time,
/// under c10::InferenceMode: nothing here thinks of gradients.
class ModelSlice {
 public:
  /// Loads only the slice's own tensors. Throws std::runtime_error naming a missing, extra or
  /// mis-shaped tensor of an owned layer, with expected and got.
  ModelSlice(const std::filesystem::path& model_dir,
             const ModelConfig& config,
             LayerRange layers,
             at::ScalarType dtype,
             at::Device device);

  LayerRange layers() const { return layers_; }
  bool is_first() const { return layers_.first == 0; }
  bool is_last() const { return layers_.last == config_.num_hidden_layers; }
  /// Bytes of all weights held.
  int64_t nbytes() const { return nbytes_; }

  /// int64 ids [tokens] → hidden states [tokens, hidden_size]. is_first only.
  at::Tensor embed(const at::Tensor& input_ids) const;
  /// Layers [start_layer, last) over hidden_states [tokens, hidden_size] → the same shape. Each
  /// sequence's cache starts at start_layer, holds the tokens before the sequence's position, and
  /// has taken up its rows when this returns; after an exception it is of no more use.
  at::Tensor forward(at::Tensor hidden_states,
                     std::vector<Sequence> sequences,
                     int64_t start_layer) const;
  /// Final norm and lm_head: hidden_states [rows, hidden_size] → float32 logits [rows, vocab_size].
  /// is_last only.
  at::Tensor logits(const at::Tensor& hidden_states) const;

 private:
  /// With the rotary embeddings of every row.
  Step make_step(std::vector<Sequence> sequences, at::ScalarType dtype) const;
  const Block& block(int64_t layer) const {
    return *blocks_[static_cast<std::size_t>(layer - layers_.first)];
  }

  ModelConfig config_;
  LayerRange layers_;
  at::Tensor
      embed_tokens_;  ///< [vocab_size, hidden_size]; is_first, or is_last with tied embeddings
  std::vector<std::unique_ptr<Block>> blocks_;
  double embed_scale_ = 1.0;
  RmsNorm norm_;    ///< over hidden_size; is_last
  Linear lm_head_;  ///< [vocab_size, hidden_size]; is_last
  RotaryFrequencies rotary_;
  std::optional<RotaryFrequencies> sliding_rotary_;
  int64_t nbytes_ = 0;
};

/// What the state of this model's sessions looks like on a node with these layers.
RecipeFields recipe_fields(const ModelConfig& config, LayerRange owned, at::ScalarType dtype);

}  // namespace meshnet
