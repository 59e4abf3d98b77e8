#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cache/layer_range.h"
#include "models/config.h"
#include "net/messages.h"

namespace meshnet {

class ModelSlice;

struct EngineOptions {
  std::filesystem::path model_dir;
  LayerRange layers;
  std::optional<Dtype> dtype;  ///< empty = the checkpoint's
  std::string device;          ///< "auto", "cpu", "cuda:N"
  int threads = 0;             ///< CPU threads of one step; 0 = all cores
};

/// What one step runs: token ids where the shard holds layer 0 and starts there, else the residual
/// of the layer before.
struct StepInput {
  std::variant<std::vector<int64_t>, HiddenStates> input;
  int64_t start_layer = 0;
  int64_t position = 0;  ///< of the first row
  bool more = false;     ///< not the last chunk of its prefill: the last shard then skips norm,
                         ///< lm_head and sampling
  SamplingParams sampling;
};

/// The residual for the next shard, or from the last shard the sampled token (none after a chunk
/// with `more`).
using StepOutput = std::variant<HiddenStates, std::optional<int64_t>>;

/// One shard's layers on one device: hidden states in, hidden states or a token out. Synchronous;
/// all calls, the constructor's among them, come from one thread, since that thread owns the CPU
/// thread pool of LibTorch. No Boost here.
class Engine {
 public:
  /// Loads the slice. Throws std::runtime_error with a sentence for the operator.
  Engine(const EngineOptions& options, const ModelConfig& config);
  ~Engine();

  /// Throws HttpError: 503 out_of_memory, 500 non_finite_logits.
  StepOutput step(const StepInput& input);

  Dtype dtype() const { return dtype_; }
  const std::string& device() const { return device_; }
  /// Bytes of the weights held.
  int64_t nbytes() const;

 private:
  StepOutput run(const StepInput& input);

  std::unique_ptr<ModelSlice> slice_;
  Dtype dtype_;
  std::string device_;
};

/// The dtype a checkpoint runs in when the configuration says auto: what it is stored in, else
/// float32.
Dtype checkpoint_dtype(const ModelConfig& config);

/// "auto" → the device it stands for on this machine. Throws std::runtime_error when the named one
/// is not there.
std::string resolve_device_name(const std::string& device);
/// Bytes free on "cpu" (the kernel's MemAvailable) or "cuda:N".
int64_t free_memory(const std::string& device);

/// Checks a slice against the model directory without loading it: every tensor that the slice needs
/// is there with the right shape, and nothing of its layers is left over. Returns the bytes its
/// weights will take. Throws std::runtime_error.
int64_t check_slice(const EngineOptions& options, const ModelConfig& config);

}  // namespace meshnet
