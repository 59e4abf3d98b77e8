#include "runtime/peers.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/experimental/parallel_group.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "net/http_error.h"
#include "net/wire.h"
#include "runtime/route.h"

namespace meshnet {
namespace {

constexpr std::chrono::milliseconds kAskTimeout{2000};
constexpr std::chrono::seconds kAskInterval{1};
/// How often a node of protocol 0 is asked again whether it keeps state: another may have taken its
/// place unseen.
constexpr std::chrono::seconds kProbeInterval{10};

}  // namespace

Peers::Peers(HttpClient& client,
             const Topology& topology,
             const NodeSettings& self,
             std::string cluster_token,
             std::string model_fingerprint,
             const ModelConfig& config,
             Dtype dtype,
             std::function<Clock::time_point()> now)
    : client_(client),
      topology_(topology),
      self_(self),
      cluster_token_(std::move(cluster_token)),
      model_fingerprint_(std::move(model_fingerprint)),
      num_hidden_layers_(config.num_hidden_layers),
      zeros_{dtype,
             1,
             config.hidden_size,
             std::string(static_cast<std::size_t>(config.hidden_size) * size_of(dtype), '\0')},
      now_(std::move(now)) {
  for (const auto& node : topology.nodes) {
    if (node.name != self.name) states_.emplace(node.name, PeerState{});
  }
}

Awaitable<void> Peers::watch() {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  while (true) {
    co_await ask_all(/*only_unusable=*/false);
    timer.expires_after(kAskInterval);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

Awaitable<void> Peers::ask_all(bool only_unusable) {
  const auto executor = co_await asio::this_coro::executor;
  std::vector<decltype(asio::co_spawn(executor, ask(self_), asio::deferred))> asked;
  for (const auto& node : topology_.nodes) {
    if (node.name == self_.name || (only_unusable && states_.at(node.name).usable)) continue;
    asked.push_back(asio::co_spawn(executor, ask(node), asio::deferred));
  }
  if (asked.empty()) co_return;
  co_await asio::experimental::make_parallel_group(std::move(asked))
      .async_wait(asio::experimental::wait_for_all(), asio::use_awaitable);
}

Awaitable<void> Peers::ask(const NodeSettings& node) {
  HttpRequest request{http::verb::get, "/status", 11};
  if (!cluster_token_.empty()) request.set(http::field::authorization, "Bearer " + cluster_token_);
  PeerState heard;
  try {
    heard = judge(node, co_await client_.send(node.url, std::move(request), kAskTimeout));
    if (heard.usable && heard.protocol == 0) heard = co_await probe(node, std::move(heard));
  } catch (const PeerError& error) {
    heard = {};  // a node that did not stand its probe is not usable, whatever it said before
    heard.reason = fmt::format("does not answer: {}", error.what());
  }
  PeerState& state = states_.at(node.name);
  if (heard.usable && !state.usable)
    spdlog::info("node {} at {} is ready", node.name, authority(node.url));
  if (!heard.usable && heard.reason != state.reason) {
    spdlog::warn("node {} at {} {}", node.name, authority(node.url), heard.reason);
  }
  state = std::move(heard);
}

/// `heard` with what is known of the state of this node of protocol 0. It has the time of a step to
/// show that when it is first seen; after that one that is late is busy, with a long prompt
/// perhaps.
Awaitable<PeerState> Peers::probe(const NodeSettings& node, PeerState heard) {
  const PeerState before = states_.at(node.name);
  const bool is_known = before.usable && before.protocol == 0;
  heard.keeps_state = before.keeps_state;
  heard.probed = before.probed;
  if (is_known && now_() - before.probed < kProbeInterval) co_return heard;
  heard.probed = now_();
  const std::chrono::milliseconds decode = self_.timeouts.decode;
  try {
    heard.keeps_state =
        co_await keeps_state(node, is_known ? std::min(kAskTimeout, decode) : decode);
  } catch (const PeerError& error) {
    if (!is_known || error.kind != PeerError::Kind::kTimeout) throw;
  }
  co_return heard;
}

/// A node of protocol 0 may know nothing of session state: it would run a decode as a sequence of
/// one token, and nobody would see that the answer is garbage. One that knows misses an unknown
/// session.
Awaitable<bool> Peers::keeps_state(const NodeSettings& node, std::chrono::milliseconds timeout) {
  ForwardRequest step;
  step.session = "probe-" + boost::uuids::to_string(boost::uuids::random_generator()());
  step.mode = CacheMode::kDecode;
  step.past_len = 1;
  step.hop_index = 1;
  step.start_layer = node.layers.first;
  step.hidden = zeros_;
  HttpRequest request = format_forward(step, /*peer_protocol=*/0);
  if (!cluster_token_.empty()) request.set(http::field::authorization, "Bearer " + cluster_token_);
  const HttpResponse response = co_await client_.send(node.url, std::move(request), timeout);
  const bool keeps = response.result() == http::status::conflict;
  if (!keeps && states_.at(node.name).keeps_state) {
    spdlog::warn("node {} keeps no session state: it gets whole sequences at every step",
                 node.name);
  }
  co_return keeps;
}

PeerState Peers::judge(const NodeSettings& node, const HttpResponse& response) const {
  PeerState state;
  if (response.result() == http::status::unauthorized) {
    state.reason = "refuses our cluster token";
    return state;
  }
  const bool has_status = response.result() == http::status::ok;
  const bool unknown_path = response.result() == http::status::not_found ||
                            response.result() == http::status::method_not_allowed;
  if (!has_status && !unknown_path) {
    state.reason = fmt::format("answered GET /status with {}", response.result_int());
    return state;
  }
  const auto status = nlohmann::json::parse(response.body(), nullptr, /*allow_exceptions=*/false);
  const auto protocol =
      status.is_object() ? status.value("protocol", nlohmann::json()) : nlohmann::json();
  if (!has_status ||
      !protocol.is_number_integer()) {  // a node of protocol 0 has no /status of ours
    state.usable = true;
    return state;
  }
  state.protocol = protocol.get<int64_t>();
  const auto text = [&](const char* key, const nlohmann::json& object) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const std::string theirs = text("model_fingerprint", status);
  const auto shard = status.find("shard");
  const std::string layers = shard != status.end() ? text("layers", *shard) : std::string();
  if (!theirs.empty() && theirs != model_fingerprint_) {
    state.reason = fmt::format(
        "serves another model (fingerprint {}, ours is {})", theirs, model_fingerprint_);
  } else if (!layers.empty() && layers != to_string(node.layers)) {
    state.reason = fmt::format(
        "holds layers {}, not {} as the topology here says", layers, to_string(node.layers));
  } else if (text("state", status) != "ready") {
    state.reason = "is still loading its layers";
  } else {
    state.usable = true;
  }
  return state;
}

void Peers::mark_failed(const std::string& name, const std::string& reason) {
  const auto state = states_.find(name);
  if (state == states_.end()) return;
  state->second.usable = false;
  state->second.reason = "failed: " + reason;
}

std::vector<RouteCandidate> Peers::candidates() const {
  std::vector<RouteCandidate> usable{{self_.name, self_.layers}};
  for (const auto& node : topology_.nodes) {
    if (node.name != self_.name && states_.at(node.name).usable)
      usable.push_back({node.name, node.layers});
  }
  return usable;
}

Awaitable<std::vector<Hop>> Peers::choose_hops() {
  if (!unavailable_reason().empty()) co_await ask_all(/*only_unusable=*/true);
  if (const auto reason = unavailable_reason(); !reason.empty())
    throw HttpError(502, "no_route", reason);

  const Route route = choose_route(candidates(), self_.name, num_hidden_layers_);
  std::vector<Hop> hops;
  for (const auto& hop : std::span(route.hops).subspan(1)) {
    const PeerState& state = states_.at(hop.name);
    hops.push_back({hop.name,
                    topology_.node(hop.name).url,
                    hop.start_layer,
                    state.protocol,
                    state.keeps_state});
  }
  co_return hops;
}

std::string Peers::unavailable_reason() const {
  const LayerRange gap = first_gap(candidates(), num_hidden_layers_);
  if (gap.size() == 0) return {};
  std::string reason =
      fmt::format("no complete route: no usable node holds layers {}", to_string(gap));
  for (const auto& node : topology_.nodes) {
    if (node.name == self_.name || !node.layers.contains(gap.first)) continue;
    reason += fmt::format("; {} ({}) at {} {}",
                          node.name,
                          to_string(node.layers),
                          authority(node.url),
                          states_.at(node.name).reason);
  }
  return reason;
}

}  // namespace meshnet
