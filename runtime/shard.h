#pragma once

#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "models/config.h"
#include "net/asio.h"
#include "runtime/engine.h"

namespace meshnet {

/// One step with what it does to session state.
struct ShardStep {
  CacheMode mode = CacheMode::kStateless;
  bool admitted = false;  ///< of a generation in progress: the queue's limit is not for it
  StepInput input;
};

struct TimedOutput {
  StepOutput output;
  double queue_ms = 0.0;    ///< waiting for the compute thread
  double compute_ms = 0.0;  ///< on it
};

/// The engine on its compute thread. Connections hand it steps through a queue and await the
/// answer; everything but the engine itself lives on the I/O thread.
///
/// This version keeps no session state: a prefill is computed statelessly, a decode or a continued
/// chunk is a cache_miss with reason caching_disabled (one token run statelessly would be silent
/// garbage).
class Shard {
 public:
  Shard(EngineOptions options, ModelConfig config, int64_t max_queue);

  /// Loads the slice on the compute thread. Throws std::runtime_error with a sentence for the
  /// operator.
  Awaitable<void> load();
  bool ready() const { return engine_ != nullptr; }

  /// Throws HttpError: 409 cache_miss, 429 queue_full, 503 while loading, and what Engine::step
  /// throws. A step whose caller is cancelled while it waits in the queue is dropped.
  Awaitable<TimedOutput> step(ShardStep step);

  const ModelConfig& config() const { return config_; }
  LayerRange layers() const { return options_.layers; }
  bool is_first() const { return options_.layers.first == 0; }
  bool is_last() const { return options_.layers.last == config_.num_hidden_layers; }
  Dtype dtype() const { return options_.dtype.value_or(checkpoint_dtype(config_)); }
  /// "cpu", "cuda:0"; as configured until ready().
  std::string device() const { return engine_ ? engine_->device() : options_.device; }
  int64_t nbytes() const { return engine_ ? engine_->nbytes() : 0; }
  int64_t queued() const { return queued_; }

 private:
  EngineOptions options_;
  ModelConfig config_;
  int64_t max_queue_;
  int64_t queued_ = 0;  ///< steps waiting or running
  std::unique_ptr<Engine> engine_;
  asio::thread_pool compute_{1};  ///< last member: joined before the engine goes
};

}  // namespace meshnet
