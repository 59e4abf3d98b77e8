#include "runtime/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "models/nvtx.h"
#include "net/http_error.h"
#include "net/run_on.h"

namespace meshnet {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// What one batch made, and how long it took.
struct BatchRun {
  std::vector<StepResult> results;
  Clock::time_point begun;
  double compute_ms = 0.0;
};

/// For a profiler; empty without one.
std::string sessions_of(const std::vector<StepInput>& inputs) {
  std::string sessions;
  if (!profiler_attached()) return sessions;
  for (const StepInput& input : inputs) {
    if (!sessions.empty()) sessions += ' ';
    sessions += input.session;
  }
  return sessions;
}

}  // namespace

/// A step in the queue or on the compute thread, shared by its caller and the pump.
struct Shard::Waiting {
  Waiting(const asio::any_io_executor& executor, StepInput step_input)
      : input(std::move(step_input)),
        in_queue({.kind = "queue", .session = input.session, .number = input.position}),
        done(executor, Clock::time_point::max()) {}

  StepInput input;
  AsyncRange in_queue;
  asio::steady_timer done;  ///< cancelled when `result` is there
  std::optional<StepResult> result;
  Clock::time_point enqueued = Clock::now();
  double queue_ms = 0.0;
  double compute_ms = 0.0;
};

Shard::Shard(EngineOptions options, ModelConfig config, int64_t max_queue, int64_t max_batch)
    : options_(std::move(options)),
      config_(std::move(config)),
      max_queue_(max_queue),
      max_batch_(max_batch) {}

Awaitable<void> Shard::load() {
  engine_ = co_await run_on(compute_.get_executor(),
                            [this] { return std::make_unique<Engine>(options_, config_); });
}

Awaitable<TimedOutput> Shard::step(StepInput input, bool admitted) {
  if (!ready()) throw HttpError(503, "loading", "the node is still loading its layers");
  if (std::ssize(queue_) >= max_queue_ && !admitted) {
    HttpError full(429, "queue_full", fmt::format("{} steps are waiting already", queue_.size()));
    full.retry_after_seconds = 1;
    throw full;
  }
  if (input.mode != CacheMode::kStateless) engine_->admit(input.session, input.epoch);

  const auto executor = co_await asio::this_coro::executor;
  const auto waiting = std::make_shared<Waiting>(executor, std::move(input));
  queue_.push_back(waiting);
  if (!std::exchange(pumping_, true)) asio::co_spawn(executor, pump(), asio::detached);
  if (!waiting->result) {
    boost::system::error_code ignored;  // the timer only ever ends by being cancelled
    co_await waiting->done.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  if (!waiting->result) {  // it was the caller that was cancelled
    std::erase(queue_, waiting);
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  if (auto* error = std::get_if<std::exception_ptr>(&*waiting->result)) {
    std::rethrow_exception(std::exchange(*error, nullptr));
  }
  co_return TimedOutput{
      std::get<StepOutput>(std::move(*waiting->result)), waiting->queue_ms, waiting->compute_ms};
}

/// The oldest step; but decodes that have waited for one prefill go before the next. With a decode,
/// those of other sessions that can run with it. Steps of one session keep their order.
std::vector<std::shared_ptr<Shard::Waiting>> Shard::take_batch() {
  std::vector<std::shared_ptr<Waiting>> ready;  // the oldest of each session
  std::set<std::string_view> sessions;
  for (const auto& waiting : queue_) {
    if (sessions.insert(waiting->input.session).second) ready.push_back(waiting);
  }
  const auto decodes = [](const auto& step) { return step->input.mode == CacheMode::kDecode; };
  const auto overtaking = std::ranges::find_if(
      ready, [&](const auto& step) { return decodes(step) && step->enqueued < prefill_ended_; });
  const auto first = overtaking == ready.end() ? ready.front() : *overtaking;

  std::vector<std::shared_ptr<Waiting>> batch = {first};
  for (const auto& step : ready) {
    if (std::ssize(batch) == max_batch_) break;
    const bool fits = step != first && decodes(step) && decodes(first) &&
                      step->input.start_layer == first->input.start_layer;
    if (fits) batch.push_back(step);
  }
  for (const auto& step : batch) std::erase(queue_, step);
  return batch;
}

/// Feeds the compute thread until the queue is empty.
Awaitable<void> Shard::pump() {
  while (!queue_.empty()) {
    const auto batch = take_batch();
    running_ = static_cast<int64_t>(batch.size());
    std::vector<StepInput> inputs;
    std::vector<AsyncRange> in_queue;
    for (const auto& waiting : batch) {
      inputs.push_back(std::move(waiting->input));
      in_queue.push_back(std::move(waiting->in_queue));
    }
    auto work = [this, inputs = std::move(inputs), in_queue = std::move(in_queue)]() mutable {
      const auto begun = Clock::now();
      in_queue.clear();
      const std::string sessions = sessions_of(inputs);
      const ThreadRange range({.kind = to_string(inputs.front().mode),
                               .session = sessions,
                               .number = inputs.front().position});
      std::vector<StepResult> results;
      try {
        results = engine_->step(inputs);
      } catch (...) {
        results.assign(inputs.size(), std::current_exception());
      }
      return BatchRun{std::move(results), begun, milliseconds_between(begun, Clock::now())};
    };
    BatchRun run = co_await run_on(compute_.get_executor(), std::move(work));
    running_ = 0;
    if (batch.front()->input.mode != CacheMode::kDecode) prefill_ended_ = Clock::now();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      batch[i]->result = std::move(run.results[i]);
      batch[i]->queue_ms = milliseconds_between(batch[i]->enqueued, run.begun);
      batch[i]->compute_ms = run.compute_ms;
      batch[i]->done.cancel();
    }
  }
  pumping_ = false;
}

}  // namespace meshnet
