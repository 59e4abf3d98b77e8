#include <nlohmann/json.hpp>

#include "net/wire.h"
#include "runtime/handlers.h"
#include "runtime/node.h"
#include "runtime/version.h"

namespace meshnet {
namespace {

using nlohmann::json;

json peers_json(const Node& node) {
  json peers = json::array();
  if (!node.shard.is_first() || node.shard.is_last())
    return peers;  // only a head with hops asks others
  for (const auto& [name, state] : node.peers.states()) {
    const NodeSettings& settings = node.topology.node(name);
    peers.push_back({{"name", name},
                     {"url", "http://" + authority(settings.url)},
                     {"layers", to_string(settings.layers)},
                     {"usable", state.usable},
                     {"protocol", state.protocol}});
    if (!state.usable) peers.back()["reason"] = state.reason;
  }
  return peers;
}

json sessions_json(const CacheStatus& cache) {
  json sessions = json::array();
  for (const SessionStatus& session : cache.sessions) {
    sessions.push_back({{"id", session.id},
                        {"epoch", session.epoch},
                        {"layers", to_string(session.layers)},
                        {"tokens", session.tokens},
                        {"bytes", session.bytes},
                        {"idle_seconds", session.idle_seconds},
                        {"in_use", session.in_use}});
  }
  return sessions;
}

json cache_json(const Node& node, const CacheStatus& cache) {
  json object{{"enabled", cache.enabled},
              {"total_bytes", cache.total_bytes},
              {"max_bytes", cache.max_bytes},
              {"max_sessions", node.self.cache.max_sessions},
              {"ttl_seconds", node.self.cache.ttl.count()},
              {"bytes_per_token", cache.bytes_per_token},
              {"fixed_bytes", cache.fixed_bytes}};
  if (!cache.enabled) {
    object["reason"] = "caching_disabled";
    object["message"] = cache.disabled_reason;
  }
  return object;
}

std::string status_body(const Node& node) {
  const CacheStatus cache = node.shard.cache_status();
  json converted = json::array();
  for (const Dtype dtype : node.converted_dtypes) converted.push_back(to_string(dtype));
  const auto& self = node.self;
  return json{{"name", self.name},
              {"version", kVersion},
              {"protocol", kOwnProtocol},
              {"state", node.shard.ready() ? "ready" : "loading"},
              {"model", self.served_name},
              {"model_fingerprint", node.model_fingerprint},
              {"recipe_fingerprint", node.recipe_fingerprint},
              {"shard",
               {{"layers", to_string(self.layers)},
                {"is_first", node.shard.is_first()},
                {"is_last", node.shard.is_last()},
                {"device", node.shard.device()},
                {"dtype", to_string(node.shard.dtype())},
                {"converted_dtypes", converted},
                {"weight_bytes", node.shard.nbytes()}}},
              {"sessions", sessions_json(cache)},
              {"cache", cache_json(node, cache)},
              {"limits",
               {{"max_context", node.max_context()},
                {"max_body", self.limits.max_body},
                {"max_queue", self.limits.max_queue},
                {"prefill_chunk", self.limits.prefill_chunk}}},
              {"queue_length", node.shard.queued()},
              {"peers", peers_json(node)}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Awaitable<void> handle_health(Node& node, Exchange& exchange) {
  const std::string reason = node.unavailable_reason();
  if (reason.empty()) return send_json(node, exchange, http::status::ok, R"({"status": "ok"})");
  return send_json(node,
                   exchange,
                   http::status::service_unavailable,
                   json{{"status", "unavailable"}, {"reason", reason}}.dump(
                       -1, ' ', false, json::error_handler_t::replace));
}

Awaitable<void> handle_metrics(Node& node, Exchange& exchange) {
  node.metrics.set_queue_length(node.shard.queued());
  const CacheStatus cache = node.shard.cache_status();
  node.metrics.set_sessions(static_cast<int64_t>(cache.sessions.size()), cache.total_bytes);
  HttpResponse response{http::status::ok, 11};
  response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
  response.body() = node.metrics.text();
  co_await exchange.send(std::move(response));
}

}  // namespace

void add_status_routes(Router& router, Node& node) {
  router.add(http::verb::get, "/health", [&node](Exchange& e) { return handle_health(node, e); });
  router.add(http::verb::get, "/metrics", [&node](Exchange& e) { return handle_metrics(node, e); });
  router.add(http::verb::get, "/status", [&node](Exchange& e) {
    return send_json(node, e, http::status::ok, status_body(node));
  });
}

}  // namespace meshnet
