#pragma once

#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "models/config.h"
#include "net/asio.h"
#include "runtime/engine.h"

namespace meshnet {

struct TimedOutput {
  StepOutput output;
  double queue_ms = 0.0;    ///< waiting for the compute thread
  double compute_ms = 0.0;  ///< on it
};

/// The engine on its compute thread. Connections hand it steps through a queue and await the
/// answer; decode steps of different sessions that wait together run as one batch, and wait for one
/// prefill at most. Everything but the engine itself lives on the I/O thread.
class Shard {
 public:
  /// `max_batch` steps at most run as one; 1 makes a sequence's arithmetic independent of its
  /// company.
  Shard(EngineOptions options, ModelConfig config, int64_t max_queue, int64_t max_batch);

  /// Loads the slice on the compute thread. Throws std::runtime_error with a sentence for the
  /// operator.
  Awaitable<void> load();
  bool ready() const { return engine_ != nullptr; }

  /// `admitted`: of a generation in progress; the queue's limit is not for it. Throws HttpError:
  /// 412 stale_route_epoch, 429 queue_full, 503 while loading, and what Engine::step says. A step
  /// whose caller is cancelled while it waits in the queue is dropped.
  Awaitable<TimedOutput> step(StepInput input, bool admitted);

  /// Ends a session: its state goes, at the end of the step in progress. Whether it held any.
  bool release(const std::string& session) { return ready() && engine_->release(session); }
  CacheStatus cache_status() const { return ready() ? engine_->cache_status() : CacheStatus{}; }
  int64_t session_bytes(int64_t tokens) const {
    return ready() ? engine_->session_bytes(tokens) : 0;
  }

  const ModelConfig& config() const { return config_; }
  LayerRange layers() const { return options_.layers; }
  bool is_first() const { return options_.layers.first == 0; }
  bool is_last() const { return options_.layers.last == config_.num_hidden_layers; }
  Dtype dtype() const { return options_.dtype.value_or(checkpoint_dtype(config_)); }
  /// "cpu", "cuda:0"; as configured until ready().
  std::string device() const { return engine_ ? engine_->device() : options_.device; }
  int64_t nbytes() const { return engine_ ? engine_->nbytes() : 0; }
  /// Steps waiting or running.
  int64_t queued() const { return static_cast<int64_t>(queue_.size()) + running_; }

 private:
  struct Waiting;

  Awaitable<void> pump();
  std::vector<std::shared_ptr<Waiting>> take_batch();

  EngineOptions options_;
  ModelConfig config_;
  int64_t max_queue_;
  int64_t max_batch_;
  std::deque<std::shared_ptr<Waiting>> queue_;
  int64_t running_ = 0;                                  ///< steps on the compute thread
  std::chrono::steady_clock::time_point prefill_ended_;  ///< the last
  bool pumping_ = false;
  std::unique_ptr<Engine> engine_;
  asio::thread_pool compute_{1};  ///< last member: joined before the engine goes
};

}  // namespace meshnet
