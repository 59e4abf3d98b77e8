#include "runtime/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <iterator>
#include <utility>

#include "models/nvtx.h"
#include "runtime/stop_matcher.h"

namespace meshnet {
namespace {

/// Turns the route's answers into text, and knows when to stop.
class Answer {
 public:
  Answer(const Tokenizer& tokenizer,
         const std::vector<int64_t>& eos_token_ids,
         std::vector<std::string> stop)
      : tokenizer_(tokenizer),
        eos_token_ids_(eos_token_ids),
        detokenizer_(tokenizer),
        stop_(std::move(stop)) {}

  void take(const RouteAnswer& answer) {
    ++completion_tokens;
    if (const auto* id = std::get_if<int64_t>(&answer)) {
      take_id(*id);
    } else {
      take_text(std::get<std::string>(answer));
    }
  }

  /// What is left when nothing more comes.
  void finish() {
    if (stop_.stopped()) return;
    push(detokenizer_.finish());
    if (!stop_.stopped()) pending.text += stop_.finish();
  }

  GenerationDelta pending;  ///< not sent yet
  bool stopped = false;     ///< by an eos token or a stop string
  int64_t completion_tokens = 0;

 private:
  void take_id(int64_t id) {
    pending.token_ids.push_back(id);
    if (is_eos(id)) {
      stopped = true;
    } else {
      push(detokenizer_.push(id));
    }
  }

  /// Of a tail that tells no ids: the eos token comes as its name.
  void take_text(const std::string& text) {
    push(detokenizer_.finish());  // of a tail before, that told ids
    const auto ids = tokenizer_.encode(text, /*add_special_tokens=*/false);
    pending.token_ids.insert(pending.token_ids.end(), ids.begin(), ids.end());
    if (!ids.empty() && is_eos(ids.back())) {
      stopped = true;
    } else {
      push(text);
    }
  }

  void push(const std::string& text) {
    pending.text += stop_.push(text);
    if (stop_.stopped()) stopped = true;
  }

  bool is_eos(int64_t id) const { return std::ranges::binary_search(eos_token_ids_, id); }

  const Tokenizer& tokenizer_;
  const std::vector<int64_t>& eos_token_ids_;
  Detokenizer detokenizer_;
  StopMatcher stop_;
};

}  // namespace

/// A generation's place in line, then among those that run.
class Generator::Place {
 public:
  Place(Generator& generator, const asio::any_io_executor& executor, int64_t state_bytes)
      : bytes(state_bytes), generator_(generator), let_in_(executor, Clock::time_point::max()) {
    generator_.line_.push_back(this);
    generator_.let_in();
  }
  ~Place() {
    if (runs_) {
      --generator_.running_;
      generator_.running_bytes_ -= bytes;
    } else {
      generator_.line_.remove(this);
    }
    generator_.let_in();
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  /// Until the generation runs. Throws when it is cancelled before.
  Awaitable<void> wait() {
    boost::system::error_code ignored;  // the timer only ever ends by being cancelled
    if (!runs_) co_await let_in_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (!runs_) throw boost::system::system_error(asio::error::operation_aborted);
  }

  void let_in() {
    runs_ = true;
    let_in_.cancel();
  }

  const int64_t bytes;  ///< of its state at its full length

 private:
  using Clock = std::chrono::steady_clock;

  Generator& generator_;
  asio::steady_timer let_in_;
  bool runs_ = false;
};

/// In order; one that alone is too large runs alone, and learns so from the store.
void Generator::let_in() {
  const int64_t budget = context_.shard.cache_status().max_bytes;
  const auto fits = [&](const Place& place) {
    return running_ == 0 ||
           (running_ < context_.self.cache.max_sessions && running_bytes_ + place.bytes <= budget);
  };
  while (!line_.empty() && fits(*line_.front())) {
    Place& next = *line_.front();
    line_.pop_front();
    ++running_;
    running_bytes_ += next.bytes;
    next.let_in();
  }
}

Awaitable<GenerationEnd> Generator::run(GenerationInput input, OnDelta on_delta) {
  if (std::ssize(line_) >= context_.self.limits.max_queue) {
    HttpError full(
        429, "queue_full", fmt::format("{} generations are waiting already", line_.size()));
    full.retry_after_seconds = 1;
    throw full;
  }
  const auto executor = co_await asio::this_coro::executor;
  const int64_t tokens = std::ssize(input.prompt_ids) + input.max_tokens;
  Place place(*this, executor, context_.shard.session_bytes(tokens));
  {
    const AsyncRange range({.kind = "admission", .subject = input.trace});
    co_await place.wait();
  }
  co_return co_await generate(std::move(input), std::move(on_delta));
}

Awaitable<GenerationEnd> Generator::generate(GenerationInput input, OnDelta on_delta) {
  const auto prompt_tokens = static_cast<int64_t>(input.prompt_ids.size());
  const auto executor = co_await asio::this_coro::executor;
  RouteSession session(
      context_, executor, std::move(input.prompt_ids), input.sampling, std::move(input.trace));
  Answer answer(context_.tokenizer, generation_config_.eos_token_ids, std::move(input.stop));
  const auto take_pending = [&] {
    answer.pending.server_timing = format_server_timing(session.timings());
    return std::exchange(answer.pending, {});
  };

  while (!answer.stopped && answer.completion_tokens < input.max_tokens) {
    const RouteAnswer token = co_await session.next();
    answer.take(token);
    if (!answer.stopped && !answer.pending.text.empty()) {
      GenerationDelta delta = take_pending();
      co_await on_delta(std::move(delta));
    }
  }
  answer.finish();
  if (!answer.pending.text.empty() || !answer.pending.token_ids.empty()) {
    GenerationDelta delta = take_pending();
    co_await on_delta(std::move(delta));
  }
  context_.metrics.count_tokens(prompt_tokens, answer.completion_tokens);
  co_return GenerationEnd{answer.stopped ? "stop" : "length", answer.completion_tokens};
}

}  // namespace meshnet
