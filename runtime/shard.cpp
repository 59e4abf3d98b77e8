#include "runtime/shard.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "net/http_error.h"
#include "net/run_on.h"

namespace meshnet {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

/// Counts a step as queued for as long as it lives.
class QueueTicket {
 public:
  explicit QueueTicket(int64_t& count) : count_(count) { ++count_; }
  ~QueueTicket() { --count_; }
  QueueTicket(const QueueTicket&) = delete;
  QueueTicket& operator=(const QueueTicket&) = delete;

 private:
  int64_t& count_;
};

/// Steps that need state, of which this version keeps none.
void refuse_without_state(const ShardStep& step) {
  const bool continues = step.mode == CacheMode::kPrefill && step.input.position > 0;
  if (step.mode != CacheMode::kDecode && !continues) return;
  HttpError miss(
      409, "cache_miss", "this node keeps no session state: send the whole sequence as a prefill");
  miss.reason = "caching_disabled";
  throw miss;
}

}  // namespace

Shard::Shard(EngineOptions options, ModelConfig config, int64_t max_queue)
    : options_(std::move(options)), config_(std::move(config)), max_queue_(max_queue) {}

Awaitable<void> Shard::load() {
  engine_ = co_await run_on(compute_.get_executor(),
                            [this] { return std::make_unique<Engine>(options_, config_); });
}

Awaitable<TimedOutput> Shard::step(ShardStep step) {
  refuse_without_state(step);
  if (!ready()) throw HttpError(503, "loading", "the node is still loading its layers");
  if (queued_ > max_queue_ && !step.admitted) {
    HttpError full(429, "queue_full", fmt::format("{} steps are waiting already", queued_));
    full.retry_after_seconds = 1;
    throw full;
  }
  const QueueTicket ticket(queued_);
  const auto enqueued = Clock::now();
  // Named, here and wherever a coroutine takes a value: GCC 12 destroys an aggregate or a closure
  // twice when it is a temporary of a co_await expression.
  auto work = [this, enqueued, input = std::move(step.input)] {
    const auto started = Clock::now();
    TimedOutput timed{engine_->step(input), milliseconds_between(enqueued, started), 0.0};
    timed.compute_ms = milliseconds_between(started, Clock::now());
    return timed;
  };
  co_return co_await run_on(compute_.get_executor(), std::move(work));
}

}  // namespace meshnet
