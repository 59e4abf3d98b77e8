#include "runtime/generation.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <chrono>
#include <utility>

#include "net/http_error.h"
#include "runtime/meta.h"
#include "runtime/stop_matcher.h"

namespace meshnet {
namespace {

/// Misses in a row without a served decode between them that end a generation.
constexpr int kMaxMisses = 3;

/// How often, and how long each time, a generation that has served a token waits for a full queue.
constexpr int kMaxWaits = 60;
constexpr std::chrono::seconds kWait{1};

/// A tail of protocol 0 takes no sampling parameters.
void check_tail(const std::vector<Hop>& hops, const SamplingParams& sampling) {
  const bool greedy = sampling.temperature == 0.0 || sampling.top_p == 0.0;
  if (hops.empty() || hops.back().protocol >= 1 || greedy) return;
  throw HttpError(400,
                  kInvalidRequest,
                  fmt::format("temperature: the last node of the route, {}, speaks protocol 0 and "
                              "can only answer greedily; "
                              "ask with temperature 0",
                              hops.back().name));
}

/// The token of the route's last answer; whatever it is, it must be a row of the embedding.
int64_t checked_token(const ForwardReply& reply, const Hop& tail, int64_t vocab_size) {
  const auto* token = std::get_if<TokenReply>(&reply.result);
  const auto id = token == nullptr ? std::nullopt : token->token_id;
  if (id && *id >= 0 && *id < vocab_size) return *id;
  HttpError error(
      502,
      kBadAnswer,
      id ? fmt::format(
               "{} answered with token_id {}, expected one in [0, {})", tail.name, *id, vocab_size)
         : fmt::format("{} is the last of the route, but answered without a token_id", tail.name));
  error.node = tail.name;
  throw error;
}

}  // namespace

/// One generation on one route.
struct Generator::Session {
  std::string id;
  std::vector<Hop> hops;
  std::vector<int64_t> tokens;  ///< prompt and what was generated
  SamplingParams sampling;
  std::string trace;
  bool state_held = false;        ///< the route holds state for all tokens but the last
  bool caching_disabled = false;  ///< some node keeps no state: every step is a whole prefill
  bool admitted = false;          ///< a token was served: full queues no longer refuse it
  int misses = 0;                 ///< in a row
  int waits = 0;                  ///< for a full queue, in a row
  std::vector<Timing> timings;    ///< sums over all steps, one entry for each part and node

  void add(const std::vector<Timing>& step) {
    for (const auto& timing : step) {
      const auto same = std::ranges::find_if(timings, [&](const Timing& sum) {
        return sum.part == timing.part && sum.node == timing.node;
      });
      if (same == timings.end()) {
        timings.push_back(timing);
      } else {
        same->milliseconds += timing.milliseconds;
      }
    }
  }
};

Generator::Generator(Shard& shard,
                     Peers& peers,
                     Pipeline& pipeline,
                     const NodeSettings& self,
                     std::string model_fingerprint,
                     const Tokenizer& tokenizer,
                     const GenerationConfig& generation_config,
                     Metrics& metrics)
    : shard_(shard),
      peers_(peers),
      pipeline_(pipeline),
      self_(self),
      model_fingerprint_(std::move(model_fingerprint)),
      tokenizer_(tokenizer),
      generation_config_(generation_config),
      metrics_(metrics) {}

Awaitable<GenerationEnd> Generator::run(GenerationInput input, OnDelta on_delta) {
  Session session;
  session.id = boost::uuids::to_string(boost::uuids::random_generator()());
  session.hops = co_await peers_.choose_hops();
  session.tokens = std::move(input.prompt_ids);
  session.sampling = input.sampling;
  session.trace = std::move(input.trace);
  check_tail(session.hops, session.sampling);

  const auto prompt_tokens = static_cast<int64_t>(session.tokens.size());
  Detokenizer detokenizer(tokenizer_);
  StopMatcher stop(std::move(input.stop));
  GenerationEnd end{"length", 0};
  GenerationDelta pending;
  while (end.completion_tokens < input.max_tokens) {
    const int64_t id = co_await next_token(session);
    session.tokens.push_back(id);
    ++end.completion_tokens;
    pending.token_ids.push_back(id);
    if (is_eos(id)) {
      end.finish_reason = "stop";
      break;
    }
    pending.text += stop.push(detokenizer.push(id));
    if (stop.stopped()) {
      end.finish_reason = "stop";
      break;
    }
    if (!pending.text.empty()) {
      pending.server_timing = format_server_timing(session.timings);
      GenerationDelta delta = std::exchange(pending, {});
      co_await on_delta(std::move(delta));
    }
  }

  if (!stop.stopped()) {
    pending.text += stop.push(detokenizer.finish());
    if (stop.stopped()) end.finish_reason = "stop";
    pending.text += stop.finish();
  }
  if (!pending.text.empty() || !pending.token_ids.empty()) {
    pending.server_timing = format_server_timing(session.timings);
    co_await on_delta(std::move(pending));
  }
  metrics_.count_tokens(prompt_tokens, end.completion_tokens);
  co_return end;
}

Awaitable<int64_t> Generator::next_token(Session& session) {
  while (true) {
    const bool decode = session.state_held && !session.caching_disabled;
    bool wait = false;
    try {
      const int64_t id = co_await step(session, decode ? CacheMode::kDecode : CacheMode::kPrefill);
      session.state_held = true;
      session.admitted = true;
      session.waits = 0;
      if (decode || session.caching_disabled) session.misses = 0;
      co_return id;
    } catch (const HttpError& error) {
      wait = error.status == 429;
      if (!can_go_on(session, error)) throw;
    }
    if (wait) {
      asio::steady_timer timer(co_await asio::this_coro::executor, kWait);
      co_await timer.async_wait(asio::use_awaitable);
    }
  }
}

/// After a failed step: whether another prefill may help.
bool Generator::can_go_on(Session& session, const HttpError& error) {
  if (error.status == 502 || error.status == 504) peers_.mark_failed(error.node, error.what());
  if (error.status == 429) return session.admitted && ++session.waits <= kMaxWaits;
  if (error.error != "cache_miss") return false;

  metrics_.count_miss(error.reason);
  spdlog::debug("session {}: {} missed ({})", session.id, error.node, error.reason);
  session.state_held = false;
  if (error.reason == "caching_disabled" && !session.caching_disabled) {
    session.caching_disabled = true;  // no fault: from here on every step is a whole prefill
    return true;
  }
  return ++session.misses < kMaxMisses;
}

Awaitable<int64_t> Generator::step(Session& session, CacheMode mode) {
  ShardStep local;
  local.mode = mode;
  local.admitted = session.admitted;
  local.input.sampling = session.sampling;
  if (mode == CacheMode::kDecode) {
    local.input.position = static_cast<int64_t>(session.tokens.size()) - 1;
    local.input.input = std::vector<int64_t>{session.tokens.back()};
  } else {
    local.input.input = session.tokens;
  }
  const int64_t position = local.input.position;

  TimedOutput timed = co_await shard_.step(std::move(local));
  metrics_.count_step(mode == CacheMode::kDecode ? "decode" : "prefill");
  observe(session,
          {{"queue", self_.name, timed.queue_ms}, {"compute", self_.name, timed.compute_ms}});
  if (const auto* token = std::get_if<std::optional<int64_t>>(&timed.output))
    co_return token->value();

  ForwardRequest request;
  request.session = session.id;
  request.mode = mode;
  request.past_len = position;
  request.protocol = 1;
  request.model_fingerprint = model_fingerprint_;
  request.meta = format_meta(session.sampling);
  request.trace = session.trace;
  request.hidden = std::get<HiddenStates>(std::move(timed.output));
  ForwardReply reply = co_await pipeline_.carry(std::move(request), session.hops);
  observe(session, parse_server_timing(reply.server_timing));

  co_return checked_token(reply, session.hops.back(), shard_.config().vocab_size);
}

void Generator::observe(Session& session, const std::vector<Timing>& timings) {
  metrics_.observe(timings);
  session.add(timings);
}

bool Generator::is_eos(int64_t id) const {
  return std::ranges::binary_search(generation_config_.eos_token_ids, id);
}

}  // namespace meshnet
