#pragma once

#include <string>
#include <vector>

namespace meshnet {

/// How a checkpoint, which may hold a vision model too, calls the tensors of its text model.
struct TextModelNames {
  std::string prefix;   ///< of embed_tokens.weight, layers.N.* and norm.weight
  std::string lm_head;  ///< "lm_head.weight" or "language_model.lm_head.weight"
};

/// Decided by which names there are. The prefix is the first of these that stands before "layers."
/// or "embed_tokens.": "model.language_model." and "language_model.model.", as newer and older
/// multimodal checkpoints have it, then "model.". Where none does, "model." and "lm_head.weight",
/// so that what is missed has the usual name.
TextModelNames find_text_model(const std::vector<std::string>& names);

}  // namespace meshnet
