#include "runtime/route_session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <chrono>
#include <functional>
#include <random>
#include <utility>

#include "runtime/meta.h"

namespace meshnet {
namespace {

/// Failures without a served decode between them that end a generation.
constexpr int kMaxFailures = 3;

/// How often, and how long each time, a generation that has served a token waits for a full queue.
constexpr int kMaxWaits = 60;
constexpr std::chrono::seconds kWait{1};
/// Between two looks for a route when a node has gone.
constexpr std::chrono::milliseconds kRouteInterval{200};

/// A tail of protocol 0 takes no sampling parameters.
void check_tail(const std::vector<Hop>& hops, const SamplingParams& sampling) {
  if (hops.empty() || hops.back().protocol >= 1 || is_greedy(sampling)) return;
  throw HttpError(400,
                  kInvalidRequest,
                  fmt::format("temperature: the last node of the route, {}, speaks protocol 0 and "
                              "can only answer greedily; "
                              "ask with temperature 0",
                              hops.back().name));
}

/// The last answer of a route: a token that is a row of the embedding, or from an old tail, text.
/// No text is no end of the answer: it may be a part of a character, and which is lost.
TokenReply checked_token(ForwardReply reply, const Hop& tail, int64_t vocab_size) {
  auto* token = std::get_if<TokenReply>(&reply.result);
  const bool has_text = token != nullptr && !token->text.empty();
  if (has_text && !token->token_id && reply.protocol == 0) return std::move(*token);
  const auto id = token == nullptr ? std::nullopt : token->token_id;
  if (id && *id >= 0 && *id < vocab_size) return std::move(*token);
  HttpError error(
      502,
      kBadAnswer,
      id ? fmt::format(
               "{} answered with token_id {}, expected one in [0, {})", tail.name, *id, vocab_size)
         : fmt::format("{} is the last of the route, but answered without a token_id{}",
                       tail.name,
                       reply.protocol == 0 ? " and without text" : ""));
  error.node = tail.name;
  throw error;
}

/// A step after which the same sequence may well be served, by this route or another.
bool may_be_gone(const HttpError& error) {
  return error.error != kBadAnswer &&
         (error.status == 502 || error.status == 503 || error.status == 504);
}

bool same_route(const std::vector<Hop>& a, const std::vector<Hop>& b) {
  return std::ranges::equal(a, b, [](const Hop& x, const Hop& y) {
    return x.name == y.name && x.start_layer == y.start_layer;
  });
}

std::string names_of(const std::vector<Hop>& hops) {
  std::string names;
  for (const Hop& hop : hops) names += (names.empty() ? "" : ", ") + hop.name;
  return names;
}

}  // namespace

RouteSession::RouteSession(const RouteContext& context,
                           asio::any_io_executor executor,
                           std::vector<int64_t> prompt_ids,
                           SamplingParams sampling,
                           std::string trace)
    : context_(context),
      executor_(std::move(executor)),
      id_(boost::uuids::to_string(boost::uuids::random_generator()())),
      tokens_(std::move(prompt_ids)),
      sampling_(sampling),
      meta_(format_meta(sampling)),
      trace_(std::move(trace)) {}

RouteSession::~RouteSession() {
  context_.shard.release(id_);
  if (used_.empty()) return;
  asio::co_spawn(
      executor_, context_.pipeline.release(std::move(id_), std::move(used_)), asio::detached);
}

Awaitable<RouteAnswer> RouteSession::next() {
  if (!routed_) co_await choose_route();
  while (true) {
    std::optional<HttpError> failure;
    try {
      const TokenReply reply = co_await attempt();
      co_return take(reply);
    } catch (const HttpError& error) {
      failure = error;
    }
    co_await recover(std::move(*failure));
  }
}

Awaitable<void> RouteSession::choose_route() {
  std::vector<Hop> hops = co_await context_.peers.choose_hops();
  use(std::move(hops));
  routed_ = true;
}

void RouteSession::use(std::vector<Hop> hops) {
  check_tail(hops, sampling_);
  hops_ = std::move(hops);
  for (const Hop& hop : hops_) {
    if (!hop.keeps_state) whole_prefills_ = true;
    if (std::ranges::find(used_, hop.name, &Hop::name) == used_.end()) used_.push_back(hop);
  }
}

Awaitable<TokenReply> RouteSession::attempt() {
  const auto newest = static_cast<int64_t>(tokens_.size()) - 1;
  TokenReply reply;
  if (state_held_ && !whole_prefills_) {
    reply = co_await step(CacheMode::kDecode, newest, 1);
    failures_ = 0;
  } else {
    reply = co_await prefill();
    if (whole_prefills_) failures_ = 0;
  }
  co_return reply;
}

/// Everything so far, in chunks where every hop knows them.
Awaitable<TokenReply> RouteSession::prefill() {
  const auto tokens = static_cast<int64_t>(tokens_.size());
  const bool in_chunks = !whole_prefills_ && std::ranges::all_of(hops_, [](const Hop& hop) {
    return hop.protocol >= 1;
  });
  const int64_t chunk = in_chunks ? context_.self.limits.prefill_chunk : tokens;
  TokenReply reply;
  for (int64_t first = 0; first < tokens; first += chunk) {
    reply = co_await step(CacheMode::kPrefill, first, std::min(chunk, tokens - first));
  }
  co_return reply;
}

/// Runs `count` tokens from the one at `first` on over the whole route. The answer to a chunk that
/// is not the last is empty.
Awaitable<TokenReply> RouteSession::step(CacheMode mode, int64_t first, int64_t count) {
  const bool more = first + count < static_cast<int64_t>(tokens_.size());
  StepInput local;
  local.input = std::vector<int64_t>(tokens_.begin() + first, tokens_.begin() + first + count);
  local.position = first;
  local.more = more;
  local.sampling = sampling_;
  local.mode = mode;
  local.session = id_;
  local.epoch = epoch_;
  TimedOutput timed =
      co_await context_.shard.step(std::move(local), /*admitted=*/admitted_ || first > 0);
  context_.metrics.count_step(to_string(mode));
  observe({{"queue", context_.self.name, timed.queue_ms},
           {"compute", context_.self.name, timed.compute_ms}});
  if (const auto* token = std::get_if<std::optional<int64_t>>(&timed.output))
    co_return TokenReply{{}, *token};

  ForwardRequest request;
  request.session = id_;
  request.mode = mode;
  request.past_len = first;
  request.epoch = epoch_;
  request.model_fingerprint = context_.model_fingerprint;
  request.recipe_fingerprint = context_.recipe_fingerprint;
  request.more = more;
  request.meta = meta_;
  request.trace = trace_;
  request.hidden = std::get<HiddenStates>(std::move(timed.output));
  ForwardReply reply = co_await context_.pipeline.carry(std::move(request), hops_);
  observe(parse_server_timing(reply.server_timing));
  if (more) co_return TokenReply{};
  co_return checked_token(std::move(reply), hops_.back(), context_.shard.config().vocab_size);
}

RouteAnswer RouteSession::take(const TokenReply& reply) {
  state_held_ = true;
  admitted_ = true;
  waits_ = 0;
  if (reply.token_id) {
    text_.clear();
    tokens_.push_back(*reply.token_id);
    return *reply.token_id;
  }
  whole_prefills_ = true;
  if (text_.empty()) told_ = tokens_;
  text_ += reply.text;
  tokens_ = told_;
  const auto generated = context_.tokenizer.encode(text_, /*add_special_tokens=*/false);
  tokens_.insert(tokens_.end(), generated.begin(), generated.end());
  return reply.text;
}

/// After a failed step the route's state is unknown. Returns when another prefill may help; throws
/// `error` when none will.
Awaitable<void> RouteSession::recover(HttpError error) {
  state_held_ = false;
  if (error.status == 429) {
    if (!admitted_ || ++waits_ > kMaxWaits) throw error;
    co_await wait(kWait);
    co_return;
  }
  const bool miss = error.status == 409;
  if (!miss && !may_be_gone(error)) throw error;
  if (miss) {
    if (error.node.empty()) error.node = context_.self.name;
    context_.metrics.count_miss(error.reason);
    spdlog::info("session {}: {} missed ({})", id_, error.node, error.reason);
    if (error.reason == "released") throw error;  // which no prefill revives
    if (error.reason == "caching_disabled" && !std::exchange(whole_prefills_, true)) co_return;
  }
  if (++failures_ >= kMaxFailures) throw error;
  if (error.reason == "evicted_lru") co_await give_way();
  if (miss) co_return;
  if (error.error != "out_of_memory") context_.peers.mark_failed(error.node, error.what());
  const bool found = co_await reroute(error.what());
  if (!found) throw error;
}

/// More sessions run than some node keeps. Were each to come back at once, all would evict each
/// other for ever; one that waits a while lets the others end.
Awaitable<void> RouteSession::give_way() {
  std::minstd_rand random(static_cast<unsigned>(std::hash<std::string>()(id_) + tokens_.size()));
  std::uniform_int_distribution<int> milliseconds(50, 250);
  co_await wait(std::chrono::milliseconds(milliseconds(random) * failures_));
}

Awaitable<void> RouteSession::wait(std::chrono::milliseconds time) {
  asio::steady_timer timer(executor_, time);
  co_await timer.async_wait(asio::use_awaitable);
}

/// Finds the route to go on with: for a generation that has served a token, until a node has had
/// the time of a step to come back. False when there is none.
Awaitable<bool> RouteSession::reroute(std::string why) {
  const auto deadline = std::chrono::steady_clock::now() + context_.self.timeouts.decode;
  while (true) {
    std::optional<std::vector<Hop>> hops;
    try {
      hops = co_await context_.peers.choose_hops();
    } catch (const HttpError&) {
      hops.reset();  // no complete route now; the step's own error says more about why
    }
    if (hops && !same_route(*hops, hops_)) {
      use(std::move(*hops));
      ++epoch_;
      spdlog::warn(
          "session {}: goes on over {} with epoch {}: {}", id_, names_of(hops_), epoch_, why);
      co_return true;
    }
    if (!admitted_) co_return false;
    if (hops) {
      use(std::move(*hops));  // the same nodes, but perhaps not the same processes
      co_return true;
    }
    if (std::chrono::steady_clock::now() >= deadline) co_return false;
    co_await wait(kRouteInterval);
  }
}

void RouteSession::observe(const std::vector<Timing>& step) {
  context_.metrics.observe(step);
  for (const auto& timing : step) {
    const auto same = std::ranges::find_if(timings_, [&](const Timing& sum) {
      return sum.part == timing.part && sum.node == timing.node;
    });
    if (same == timings_.end()) {
      timings_.push_back(timing);
    } else {
      same->milliseconds += timing.milliseconds;
    }
  }
}

}  // namespace meshnet
