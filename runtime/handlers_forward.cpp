#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "net/http_error.h"
#include "net/openai.h"
#include "net/wire.h"
#include "runtime/handlers.h"
#include "runtime/meta.h"
#include "runtime/node.h"

namespace meshnet {
namespace {

const char* mode_name(CacheMode mode) {
  switch (mode) {
    case CacheMode::kPrefill:
      return "prefill";
    case CacheMode::kDecode:
      return "decode";
    case CacheMode::kStateless:
      break;
  }
  return "stateless";
}

/// Checks what only the node can know, before anything is computed.
void check_request(const Node& node, const ForwardRequest& request) {
  const auto refuse = [](unsigned status, const char* code, const std::string& message) {
    throw HttpError(status, code, message);
  };
  if (!request.model_fingerprint.empty() && request.model_fingerprint != node.model_fingerprint) {
    refuse(412,
           "incompatible_recipe",
           fmt::format("X-Meshnet-Model: the sender's model has fingerprint {}, this node's {}",
                       request.model_fingerprint,
                       node.model_fingerprint));
  }
  const LayerRange layers = node.shard.layers();
  if (request.start_layer && !layers.contains(*request.start_layer)) {
    if (request.mode == CacheMode::kDecode) {
      HttpError miss(
          409, "cache_miss", fmt::format("layer {} is not in this shard", *request.start_layer));
      miss.reason = "start_layer_mismatch";
      throw miss;
    }
    refuse(400,
           kInvalidRequest,
           fmt::format("X-Meshnet-Start-Layer: expected a layer of this shard, {}, got {}",
                       to_string(layers),
                       *request.start_layer));
  }
  if (request.past_len + request.hidden.tokens > node.max_context()) {
    refuse(400,
           kInvalidRequest,
           fmt::format("X-Meshnet-Past-Len: {} past and {} new tokens exceed the context of {}",
                       request.past_len,
                       request.hidden.tokens,
                       node.max_context()));
  }
}

ShardStep to_step(const Node& node, ForwardRequest& request) {
  ShardStep step;
  step.mode = request.mode;
  step.input.start_layer = request.start_layer.value_or(node.shard.layers().first);
  step.input.position = request.past_len;
  step.input.more = request.more;
  step.input.sampling = parse_meta(request.meta);
  step.input.input = std::move(request.hidden);
  return step;
}

ForwardReply token_reply(const Node& node, std::optional<int64_t> id) {
  if (!id) return {TokenReply{}, kProtocol, {}};
  return {TokenReply{node.tokenizer->decode(std::span(&*id, 1)), id}, kProtocol, {}};
}

/// Own layers, then the rest of the route.
Awaitable<ForwardReply> forward(Node& node, ForwardRequest request) {
  check_request(node, request);
  const auto hops = resolve_route(request.route, node.self, node.topology);
  ShardStep step = to_step(node, request);
  TimedOutput timed = co_await node.shard.step(std::move(step));
  node.metrics.count_step(mode_name(request.mode));
  const std::vector<Timing> own = {{"queue", node.self.name, timed.queue_ms},
                                   {"compute", node.self.name, timed.compute_ms}};
  node.metrics.observe(own);

  ForwardReply reply;
  if (auto* hidden = std::get_if<HiddenStates>(&timed.output)) {
    if (hops.empty()) {
      reply = {std::move(*hidden), kProtocol, {}};
    } else {
      request.hidden = std::move(*hidden);
      reply = co_await node.pipeline.carry(std::move(request), hops);
    }
  } else {
    reply = token_reply(node, std::get<std::optional<int64_t>>(timed.output));
  }
  reply.protocol = kProtocol;
  const auto rest = std::exchange(reply.server_timing, format_server_timing(own));
  if (!rest.empty()) reply.server_timing += ", " + rest;
  co_return reply;
}

/// Says once that a sender's dtype differs from ours, and is converted on arrival.
void note_conversion(Node& node, Dtype theirs) {
  if (theirs == node.shard.dtype() || !node.converted_dtypes.insert(theirs).second) return;
  spdlog::warn("{}: hidden states arrive in {} and are converted to {}",
               node.self.name,
               to_string(theirs),
               to_string(node.shard.dtype()));
}

Awaitable<void> handle_forward(Node& node, Exchange& exchange) {
  std::optional<int64_t> hop_index;
  try {
    // The body alone: what is left still says in logs which request failed.
    HttpRequest taken(exchange.request.base(), std::move(exchange.request.body()));
    ForwardRequest request =
        parse_forward(std::move(taken),
                      {node.shard.dtype(), node.shard.config().hidden_size, node.max_context()});
    hop_index = request.hop_index;
    note_conversion(node, request.hidden.dtype);
    spdlog::debug("{}: {} of {} tokens, session {}, hop {}, request {}",
                  node.self.name,
                  mode_name(request.mode),
                  request.hidden.tokens,
                  request.session,
                  request.hop_index,
                  request.trace);
    ForwardReply reply = co_await forward(node, std::move(request));
    node.metrics.count_request("/forward", 200);
    co_await exchange.send(format_forward_reply(reply));
  } catch (HttpError& error) {
    if (error.node.empty()) error.hop_index = hop_index;
    if (error.error == "cache_miss") node.metrics.count_miss(error.reason);
    throw;
  }
}

}  // namespace

void add_forward_routes(Router& router, Node& node) {
  router.add(http::verb::post, "/forward", require_cluster_token(node, [&node](Exchange& exchange) {
               return handle_forward(node, exchange);
             }));
  // No session state is kept yet, so there is none to release.
  router.add(http::verb::delete_,
             "/sessions/{id}",
             require_cluster_token(node, [&node](Exchange& exchange) {
               return send_json(node, exchange, http::status::ok, R"({"released": false})");
             }));
}

}  // namespace meshnet
