#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cache/layer_range.h"
#include "models/config.h"
#include "net/messages.h"
#include "runtime/settings.h"

namespace meshnet {

class ModelSlice;
class SessionStore;

struct EngineOptions {
  std::filesystem::path model_dir;
  LayerRange layers;
  std::optional<Dtype> dtype;  ///< empty = the checkpoint's
  std::string device;          ///< "auto", "cpu", "cuda:N"
  int threads = 0;             ///< CPU threads of one step; 0 = all cores
  CacheSettings cache;
};

/// What one step runs, and on which state: token ids where the shard holds layer 0 and starts
/// there, else the residual of the layer before.
struct StepInput {
  std::variant<std::vector<int64_t>, HiddenStates> input;
  int64_t start_layer = 0;
  int64_t position = 0;  ///< of the first row: tokens that the session must already hold
  bool more = false;     ///< not the last chunk of its prefill: the last shard then skips norm,
                         ///< lm_head and sampling
  SamplingParams sampling;
  CacheMode mode = CacheMode::kStateless;
  std::string session;  ///< with any other mode
  int64_t epoch = 1;
};

/// The residual for the next shard, or from the last shard the sampled token (none after a chunk
/// with `more`).
using StepOutput = std::variant<HiddenStates, std::optional<int64_t>>;
/// What became of one step of a batch.
using StepResult = std::variant<StepOutput, std::exception_ptr>;

/// One session's state on this node, as GET /status shows it.
struct SessionStatus {
  std::string id;
  int64_t epoch = 1;
  LayerRange layers;
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t idle_seconds = 0;
  bool in_use = false;
};

/// What session state costs on this node, and how much there is.
struct CacheStatus {
  bool enabled = false;
  std::string disabled_reason;  ///< a clause for people; empty when enabled
  int64_t bytes_per_token = 0;  ///< over all owned layers
  int64_t fixed_bytes = 0;      ///< of one session over all owned layers
  int64_t max_bytes = 0;
  int64_t total_bytes = 0;
  std::vector<SessionStatus> sessions;
};

/// One shard's layers and its sessions' state on one device: hidden states in, hidden states or a
/// token out. Synchronous; the constructor and step() belong to one thread, which owns the CPU
/// thread pool of LibTorch and the GPU's stream: on a GPU it waits for hidden states that leave and
/// for the sampled token, for nothing else. No Boost here.
class Engine {
 public:
  /// Loads the slice. Throws std::runtime_error with a sentence for the operator.
  Engine(const EngineOptions& options, const ModelConfig& config);
  ~Engine();

  /// Runs steps of different sessions, all from one start layer, as one packed batch. A step fails
  /// with HttpError: 409 cache_miss with its reason, 507 session_exceeds_budget, 503 out_of_memory,
  /// 500 non_finite_logits; its session's state is gone then, except after a cache_miss.
  std::vector<StepResult> step(std::span<const StepInput> inputs);

  /// From any thread: a request of this session has arrived. Throws HttpError 412
  /// stale_route_epoch.
  void admit(const std::string& session, int64_t epoch);
  /// From any thread: ends a session, at the end of the step in progress. Whether it held state.
  bool release(std::string_view session);
  /// From any thread.
  CacheStatus cache_status();
  /// Bytes of the state of one session of `tokens` over all owned layers; 0 when caching is off.
  int64_t session_bytes(int64_t tokens) const;

  const std::string& device() const { return device_; }
  /// Bytes of the weights held.
  int64_t nbytes() const;

 private:
  std::unique_ptr<ModelSlice> slice_;
  std::unique_ptr<SessionStore> store_;  ///< none when caching is off
  std::string caching_disabled_;         ///< why, a clause for people
  Dtype dtype_;
  std::string device_;
};

/// The fingerprint that travels as X-Meshnet-Recipe; empty for an architecture whose cached decode
/// is not certified.
std::string recipe_fingerprint(const ModelConfig& config);

/// The dtype a checkpoint runs in when the configuration says auto: what it is stored in, else
/// float32.
Dtype checkpoint_dtype(const ModelConfig& config);

/// "auto" → the device it stands for on this machine. Throws std::runtime_error when the named one
/// is not there.
std::string resolve_device_name(const std::string& device);
/// Bytes free on "cpu" (the kernel's MemAvailable) or "cuda:N".
int64_t free_memory(const std::string& device);

/// What session state costs on a node whose weights are not loaded yet.
struct CachePlan {
  std::string disabled_reason;  ///< a clause for people; empty when enabled
  int64_t bytes_per_token = 0;
  int64_t session_bytes = 0;  ///< of one session of the length asked for
  int64_t max_bytes = 0;      ///< of all sessions
};
CachePlan plan_cache(const EngineOptions& options,
                     const ModelConfig& config,
                     int64_t weight_bytes,
                     int64_t session_tokens);

/// Checks a slice against the model directory without loading it: every tensor that the slice needs
/// is there with the right shape, and nothing of its layers is left over. Returns the bytes its
/// weights will take. Throws std::runtime_error.
int64_t check_slice(const EngineOptions& options, const ModelConfig& config);

}  // namespace meshnet
