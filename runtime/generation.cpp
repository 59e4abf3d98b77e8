#include "runtime/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
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

  /// Of a tail that tells no ids: the eos token comes as its name, or as no text at all.
  void take_text(const std::string& text) {
    push(detokenizer_.finish());  // of a tail before, that told ids
    const auto ids = tokenizer_.encode(text, /*add_special_tokens=*/false);
    pending.token_ids.insert(pending.token_ids.end(), ids.begin(), ids.end());
    if (ids.empty() || is_eos(ids.back())) {
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

/// Counts for as long as it lives.
class Counted {
 public:
  explicit Counted(int64_t& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int64_t& count_;
};

/// One of the generations that run: gives its place to the next in line when it ends.
template <class Channel>
class Place {
 public:
  explicit Place(Channel& running) : running_(running) {}
  ~Place() {
    running_.try_receive([](const boost::system::error_code&) {});
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  Channel& running_;
};

}  // namespace

Generator::Generator(const asio::any_io_executor& executor,
                     RouteContext context,
                     const GenerationConfig& generation_config)
    : context_(std::move(context)),
      generation_config_(generation_config),
      running_(executor, static_cast<std::size_t>(context_.self.cache.max_sessions)) {}

Awaitable<GenerationEnd> Generator::run(GenerationInput input, OnDelta on_delta) {
  if (waiting_ >= context_.self.limits.max_queue) {
    HttpError full(429, "queue_full", fmt::format("{} generations are waiting already", waiting_));
    full.retry_after_seconds = 1;
    throw full;
  }
  {
    const Counted in_line(waiting_);
    const AsyncRange range({.kind = "admission", .subject = input.trace});
    co_await running_.async_send(boost::system::error_code{}, asio::use_awaitable);
  }
  const Place place(running_);
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
