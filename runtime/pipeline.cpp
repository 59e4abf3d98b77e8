#include "runtime/pipeline.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <numeric>
#include <utility>

#include "models/nvtx.h"
#include "net/http_error.h"
#include "net/openai.h"
#include "net/router.h"
#include "net/wire.h"
#include "runtime/server_timing.h"

namespace meshnet {
namespace {

using Clock = std::chrono::steady_clock;

HttpError hop_error(const Hop& hop,
                    int64_t hop_index,
                    unsigned status,
                    const char* code,
                    const std::string& message) {
  HttpError error(status, code, message);
  error.node = hop.name;
  error.hop_index = hop_index;
  return error;
}

/// Hops from the first on that can pass hidden states among themselves; at least the first.
std::size_t chainable(std::span<const Hop> hops) {
  const auto old = std::ranges::find_if(hops, [](const Hop& hop) { return hop.protocol < 1; });
  return std::max<std::size_t>(1, static_cast<std::size_t>(old - hops.begin()));
}

/// Timings of the hops a request was sent to; whatever else the header says is left out.
std::vector<Timing> timings_of(const std::string& server_timing, std::span<const Hop> hops) {
  auto timings = parse_server_timing(server_timing);
  std::erase_if(timings, [&](const Timing& timing) {
    return std::ranges::find(hops, timing.node, &Hop::name) == hops.end();
  });
  return timings;
}

double total_milliseconds(const std::vector<Timing>& timings) {
  return std::accumulate(timings.begin(), timings.end(), 0.0, [](double sum, const Timing& timing) {
    return sum + timing.milliseconds;
  });
}

/// A 200 of a hop: a token, or as many rows as were sent. Throws HttpError 502 naming the hop.
ForwardReply checked_reply(HttpResponse response,
                           const WireDefaults& sent,
                           const Hop& hop,
                           int64_t hop_index) {
  try {
    ForwardReply reply = parse_forward_reply(std::move(response), sent);
    const auto* hidden = std::get_if<HiddenStates>(&reply.result);
    if (hidden == nullptr || hidden->tokens == sent.max_tokens) return reply;
    throw HttpError(502,
                    kBadAnswer,
                    fmt::format("expected {} tokens, got {}", sent.max_tokens, hidden->tokens));
  } catch (const HttpError& error) {
    throw hop_error(hop,
                    hop_index,
                    error.status,
                    kBadAnswer,
                    fmt::format("the answer of node {}: {}", hop.name, error.what()));
  }
}

}  // namespace

Awaitable<ForwardReply> Pipeline::carry(ForwardRequest request, std::span<const Hop> hops) {
  std::vector<Timing> timings;
  while (true) {
    const Hop& hop = hops.front();
    const std::size_t covered = chainable(hops);
    ++request.hop_index;

    HiddenStates hidden = std::exchange(request.hidden, {});
    ForwardRequest next = request;
    next.hidden = std::move(hidden);
    next.start_layer = hop.start_layer;
    next.route.clear();
    for (const Hop& named : hops.first(covered)) next.route.push_back(named.name);
    if (covered < hops.size() || hop.protocol < 1) next.meta.clear();

    const AsyncRange range({.kind = "hop",
                            .subject = hop.name,
                            .session = request.session,
                            .number = hop.start_layer});
    const auto sent = Clock::now();
    ForwardReply reply = co_await send(hop, std::move(next), covered);
    const double elapsed = std::chrono::duration<double, std::milli>(Clock::now() - sent).count();
    const auto theirs = timings_of(reply.server_timing, hops);
    timings.push_back({"wire", hop.name, std::max(0.0, elapsed - total_milliseconds(theirs))});
    timings.insert(timings.end(), theirs.begin(), theirs.end());

    // A tensor of protocol 1 is the result of the whole route that was named, one of protocol 0 of
    // that hop alone.
    const std::size_t done = reply.protocol >= 1 ? covered : 1;
    const bool is_token = std::holds_alternative<TokenReply>(reply.result);
    if (is_token && done < hops.size()) {
      throw hop_error(
          hop,
          request.hop_index,
          502,
          kBadAnswer,
          fmt::format(
              "node {} answered with a token, but {} comes after it", hop.name, hops[done].name));
    }
    if (done == hops.size()) {
      reply.server_timing = format_server_timing(timings);
      co_return reply;
    }
    hops = hops.subspan(done);
    request.hop_index += static_cast<int64_t>(done) - 1;
    request.hidden = std::get<HiddenStates>(std::move(reply.result));
  }
}

/// A hop ends the step that it is at, another session's chunk perhaps, before it begins this one.
std::chrono::milliseconds Pipeline::time_limit(int64_t tokens, std::size_t hops_covered) const {
  const auto one_hop =
      self_.timeouts.decode + self_.timeouts.prefill_per_token * (longest_chunk_ + tokens);
  return one_hop * static_cast<int64_t>(hops_covered);
}

Awaitable<ForwardReply> Pipeline::send(const Hop& hop,
                                       ForwardRequest request,
                                       std::size_t hops_covered) {
  const int64_t hop_index = request.hop_index;
  const WireDefaults defaults{
      request.hidden.dtype, request.hidden.hidden_size, request.hidden.tokens};
  const auto timeout = time_limit(request.hidden.tokens, hops_covered);
  HttpRequest message = format_forward(request, hop.protocol);
  if (!cluster_token_.empty()) message.set(http::field::authorization, "Bearer " + cluster_token_);

  HttpResponse response;
  try {
    response = co_await client_.send(hop.url, std::move(message), timeout);
  } catch (const PeerError& error) {
    const bool late = error.kind == PeerError::Kind::kTimeout;
    throw hop_error(hop,
                    hop_index,
                    late ? 504 : 502,
                    late ? "next_hop_timeout" : "next_hop_unreachable",
                    fmt::format("node {} at {}: {}", hop.name, authority(hop.url), error.what()));
  }
  if (response.result() == http::status::ok)
    co_return checked_reply(std::move(response), defaults, hop, hop_index);

  HttpError error = parse_node_error(response.result_int(), response.body());
  if (error.node.empty()) error.node = hop.name;
  if (error.status == 429) error.retry_after_seconds = 1;
  if (!error.hop_index) error.hop_index = hop_index;
  throw error;
}

Awaitable<void> Pipeline::release(std::string session, std::vector<Hop> hops) {
  const auto executor = co_await asio::this_coro::executor;
  for (Hop& hop : hops) {
    asio::co_spawn(executor, release_at(session, std::move(hop)), asio::detached);
  }
}

Awaitable<void> Pipeline::release_at(std::string session, Hop hop) {
  HttpRequest message{http::verb::delete_, "/sessions/" + percent_encode(session), 11};
  if (!cluster_token_.empty()) message.set(http::field::authorization, "Bearer " + cluster_token_);
  try {
    co_await client_.send(hop.url, std::move(message), self_.timeouts.connect);
  } catch (const PeerError& error) {
    spdlog::debug("session {}: not released at {}: {}", session, hop.name, error.what());
  }
}

std::vector<Hop> resolve_route(const std::vector<std::string>& names,
                               const NodeSettings& self,
                               const Topology& topology) {
  std::vector<Hop> hops;
  if (names.empty()) return hops;
  const auto refuse = [](const std::string& message) {
    return HttpError(400, kInvalidRequest, "X-Meshnet-Route: " + message);
  };
  if (names.front() != self.name) {
    throw refuse(fmt::format(
        "expected this node, '{}', as the first name, got '{}'", self.name, names.front()));
  }
  int64_t start_layer = self.layers.last;
  for (const auto& name : std::span(names).subspan(1)) {
    const NodeSettings* node = topology.find(name);
    if (node == nullptr)
      throw refuse(fmt::format("no node '{}' in the topology of '{}'", name, self.name));
    if (!node->layers.contains(start_layer)) {
      throw refuse(fmt::format(
          "layer {} comes next, but '{}' holds {}", start_layer, name, to_string(node->layers)));
    }
    hops.push_back({name, node->url, start_layer, /*protocol=*/1, /*keeps_state=*/true});
    start_layer = node->layers.last;
  }
  return hops;
}

}  // namespace meshnet
