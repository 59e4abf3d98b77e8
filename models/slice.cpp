#include "models/slice.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "models/device_copy.h"
#include "models/log.h"
#include "models/nvtx.h"
#include "models/registry.h"
#include "models/text_model.h"
#include "models/weights.h"

namespace meshnet {
namespace {

/// The names of the tensors outside the layers, and where the layers begin.
struct Names {
  explicit Names(const TextModelNames& text)
      : embed_tokens(text.prefix + "embed_tokens.weight"),
        layers(text.prefix + "layers."),
        norm(text.prefix + "norm.weight"),
        lm_head(text.lm_head) {}

  /// The N of "model.layers.N.*"; nothing for any other name.
  std::optional<int64_t> layer_of(std::string_view name) const {
    if (!name.starts_with(layers)) return std::nullopt;
    const char* first = name.data() + layers.size();
    const char* last = name.data() + name.size();
    int64_t layer = 0;
    const auto [end, error] = std::from_chars(first, last, layer);
    if (error != std::errc{} || end == last || *end != '.' || layer < 0) return std::nullopt;
    return layer;
  }

  std::string embed_tokens;
  std::string layers;
  std::string norm;
  std::string lm_head;
};

/// Every tensor of an owned layer must have been used: one that was not belongs to an architecture
/// that this is not. What belongs to no node is named in one notice.
void check_leftovers(const Checkpoint& checkpoint,
                     const Names& names,
                     const std::set<std::string>& used,
                     const ModelConfig& config,
                     LayerRange layers) {
  std::vector<std::string> ignored;
  for (const std::string& name : checkpoint.names()) {
    // Old checkpoints store what is computed from the configuration.
    if (used.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    const auto layer = names.layer_of(name);
    if (layer && layers.contains(*layer)) {
      throw std::runtime_error(c10::str(config.path.parent_path().string(),
                                        ": ",
                                        name,
                                        ": a ",
                                        config.model_type,
                                        " layer with this configuration has no such tensor"));
    }
    const bool of_another_node = (layer && *layer < config.num_hidden_layers) ||
                                 name == names.embed_tokens || name == names.norm ||
                                 (name == names.lm_head && !config.tie_word_embeddings);
    if (!of_another_node) ignored.push_back(name);
  }
  if (ignored.empty()) return;
  log_notice(c10::str(config.path.parent_path().string(),
                      ": ",
                      ignored.size(),
                      ignored.size() == 1 ? " tensor is" : " tensors are",
                      " no part of the model and ignored: ",
                      ignored.front(),
                      ignored.size() == 1 ? "" : c10::str(" ... ", ignored.back())));
}

void check_arguments(const ModelConfig& config,
                     LayerRange layers,
                     at::ScalarType dtype,
                     at::Device device) {
  if (layers.first < 0 || layers.size() < 1 || layers.last > config.num_hidden_layers) {
    throw std::runtime_error(c10::str(config.path.string(),
                                      ": the model has layers 0-",
                                      config.num_hidden_layers - 1,
                                      ", got ",
                                      to_string(layers)));
  }
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf) {
    throw std::runtime_error(
        c10::str("dtype: expected float32, bfloat16 or float16, got ", c10::toString(dtype)));
  }
  if (!device.is_cuda()) return;
  const auto gpus = static_cast<int64_t>(at::hasCUDA() ? at::getNumGPUs() : 0);
  if (device.index() >= gpus || gpus == 0) {
    throw std::runtime_error(
        c10::str("device ", device.str(), " is not there: LibTorch sees ", gpus, " GPU(s)"));
  }
}

/// The sequence's state must be that of the layers to run, at the sequence's position.
void check_cache(const Sequence& sequence, LayerRange layers) {
  if (sequence.cache == nullptr) return;
  const SliceCache& cache = *sequence.cache;
  if (cache.layers() == layers && cache.length() == sequence.position) return;
  throw std::invalid_argument(c10::str("cache: expected ",
                                       sequence.position,
                                       " tokens over layers ",
                                       to_string(layers),
                                       ", got ",
                                       cache.length(),
                                       " over ",
                                       to_string(cache.layers())));
}

/// Sequences must cover rows 0 … tokens - 1, one behind the other.
void check_sequences(const std::vector<Sequence>& sequences, int64_t tokens) {
  int64_t next = 0;
  for (const Sequence& sequence : sequences) {
    if (sequence.first_row != next || sequence.rows < 1 || sequence.position < 0) {
      throw std::invalid_argument(c10::str("sequences: expected rows from ",
                                           next,
                                           " on and a position, got first_row ",
                                           sequence.first_row,
                                           ", rows ",
                                           sequence.rows,
                                           ", position ",
                                           sequence.position));
    }
    next += sequence.rows;
  }
  if (next != tokens) {
    throw std::invalid_argument(
        c10::str("sequences: expected ", tokens, " rows together, got ", next));
  }
}

}  // namespace

ModelSlice::ModelSlice(const std::filesystem::path& model_dir,
                       const ModelConfig& config,
                       LayerRange layers,
                       at::ScalarType dtype,
                       at::Device device)
    : config_(config), layers_(layers) {
  check_arguments(config, layers, dtype, device);
  const c10::InferenceMode no_gradients;
  const Architecture& architecture = *find_architecture(config.model_type);
  Checkpoint checkpoint(model_dir);
  const Names names(find_text_model(checkpoint.names()));
  const Weights weights(checkpoint, dtype, device, config.fp8_blocks);

  const bool tied_last = is_last() && config.tie_word_embeddings;
  if (is_first() || tied_last) {
    embed_tokens_ = weights.get(names.embed_tokens, {config.vocab_size, config.hidden_size});
  }
  blocks_.reserve(static_cast<std::size_t>(layers.size()));
  for (int64_t layer = layers.first; layer < layers.last; ++layer) {
    blocks_.push_back(
        architecture.make_block(config, weights.at(names.layers + std::to_string(layer)), layer));
  }
  if (is_last()) {
    norm_ = {weights.get(names.norm, {config.hidden_size}),
             config.rms_norm_eps,
             architecture.zero_centred_norm};
    lm_head_.weight = tied_last
                          ? embed_tokens_
                          : weights.get(names.lm_head, {config.vocab_size, config.hidden_size});
  }
  check_leftovers(checkpoint, names, weights.used(), config, layers);
  rotary_ = rope_frequencies(config.rope_parameters, config.head_dim, device);
  if (config.sliding_rope_parameters) {
    sliding_rotary_ = rope_frequencies(*config.sliding_rope_parameters, config.head_dim, device);
  }
  if (architecture.scaled_embedding) {
    embed_scale_ = std::sqrt(static_cast<double>(config.hidden_size));
  }
  nbytes_ = weights.nbytes();
}

at::Tensor ModelSlice::embed(const at::Tensor& input_ids) const {
  if (!is_first()) throw std::logic_error("embed: this slice does not hold layer 0");
  // On a GPU an id out of range would be an assertion that ends all work on the device.
  if (input_ids.device().is_cpu() && input_ids.numel() > 0) {
    const auto [least, largest] = at::aminmax(input_ids);
    if (least.item<int64_t>() < 0 || largest.item<int64_t>() >= config_.vocab_size) {
      throw std::out_of_range(c10::str("input_ids: expected ids from 0 to ",
                                       config_.vocab_size - 1,
                                       ", got ",
                                       least.item<int64_t>(),
                                       " to ",
                                       largest.item<int64_t>()));
    }
  }
  const at::Tensor embedded =
      at::embedding(embed_tokens_, to_device(input_ids, embed_tokens_.device()));
  if (embed_scale_ == 1.0) return embedded;
  // As in transformers the factor is rounded to the compute dtype first.
  return embedded * at::scalar_tensor(embed_scale_, embed_tokens_.options());
}

at::Tensor ModelSlice::forward(at::Tensor hidden_states,
                               std::vector<Sequence> sequences,
                               int64_t start_layer) const {
  if (!layers_.contains(start_layer)) {
    throw std::invalid_argument(
        c10::str("start layer: expected one of ", to_string(layers_), ", got ", start_layer));
  }
  if (hidden_states.dim() != 2 || hidden_states.size(1) != config_.hidden_size) {
    throw std::invalid_argument(c10::str("hidden_states: expected [tokens, ",
                                         config_.hidden_size,
                                         "], got ",
                                         hidden_states.sizes()));
  }
  check_sequences(sequences, hidden_states.size(0));
  for (const Sequence& sequence : sequences) check_cache(sequence, {start_layer, layers_.last});

  const Step step = make_step(std::move(sequences), hidden_states.scalar_type());
  for (int64_t layer = start_layer; layer < layers_.last; ++layer) {
    const ThreadRange range("layer", layer);
    hidden_states = block(layer).forward(hidden_states, step, layer);
  }
  for (const Sequence& sequence : step.sequences) {
    if (sequence.cache != nullptr) sequence.cache->advance(sequence.rows);
  }
  return hidden_states;
}

Step ModelSlice::make_step(std::vector<Sequence> sequences, at::ScalarType dtype) const {
  const at::Tensor at_positions = positions(sequences, rotary_.inv_freq.device());
  Step step{.sequences = std::move(sequences),
            .rotary = rotary_embedding(at_positions, rotary_, dtype),
            .sliding_rotary = {}};
  if (sliding_rotary_) {
    step.sliding_rotary = rotary_embedding(at_positions, *sliding_rotary_, dtype);
  }
  return step;
}

at::Tensor ModelSlice::logits(const at::Tensor& hidden_states) const {
  if (!is_last()) throw std::logic_error("logits: this slice does not hold the last layer");
  return lm_head_.forward(norm_.forward(hidden_states)).to(at::kFloat);
}

RecipeFields recipe_fields(const ModelConfig& config, LayerRange owned, at::ScalarType dtype) {
  RecipeFields fields{config.model_type,
                      config.num_attention_heads,
                      config.head_dim,
                      /*layers=*/{},
                      dtype,
                      owned};
  const Architecture& architecture = *find_architecture(config.model_type);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    fields.layers.push_back(architecture.layer_geometry(config, layer));
  }
  return fields;
}

}  // namespace meshnet
