#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/config.h"
#include "net/messages.h"
#include "net/openai.h"
#include "runtime/tokenizer.h"

namespace meshnet {

/// What a model directory says about generating with it.
struct GenerationConfig {
  std::vector<int64_t> eos_token_ids;  ///< union of config.json, generation_config.json and the
                                       ///< tokenizer's eos_token
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
};

/// Reads generation_config.json (it may be missing) and tokenizer_config.json. do_sample false does
/// not make it greedy, as in vLLM: a client asks for that with temperature 0. Throws
/// std::runtime_error naming file and key.
GenerationConfig read_generation_config(const std::filesystem::path& model_dir,
                                        const ModelConfig& config,
                                        const Tokenizer& tokenizer);

/// The client's wishes over the model's defaults; a seed is drawn where the client gave none.
SamplingParams resolve_sampling(const SamplingRequest& request, const GenerationConfig& defaults);

}  // namespace meshnet
