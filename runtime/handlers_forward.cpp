#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "models/nvtx.h"
#include "net/http_error.h"
#include "net/openai.h"
#include "net/wire.h"
#include "runtime/handlers.h"
#include "runtime/meta.h"
#include "runtime/node.h"

namespace meshnet {
namespace {

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
  if (!request.recipe_fingerprint.empty() &&
      request.recipe_fingerprint != node.recipe_fingerprint) {
    refuse(412,
           "incompatible_recipe",
           fmt::format("X-Meshnet-Recipe: the sender's state has fingerprint {}, this node's {}",
                       request.recipe_fingerprint,
                       node.recipe_fingerprint));
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

StepInput to_step(const Node& node, ForwardRequest& request) {
  StepInput step;
  step.start_layer = request.start_layer.value_or(node.shard.layers().first);
  step.position = request.past_len;
  step.more = request.more;
  step.sampling = parse_meta(request.meta);
  step.mode = request.mode;
  step.session = request.session;
  step.epoch = request.epoch;
  step.input = std::move(request.hidden);
  return step;
}

/// `position` is where the token will stand in its session.
ForwardReply token_reply(Node& node,
                         const ForwardRequest& request,
                         int64_t position,
                         std::optional<int64_t> id) {
  ForwardReply reply{TokenReply{{}, id}, {}};
  if (!id) return reply;
  std::get<TokenReply>(reply.result).text =
      request.mode == CacheMode::kStateless ? node.tokenizer->decode(std::span(&*id, 1))
                                            : node.tail_text->add(request.session, position, *id);
  return reply;
}

/// Own layers, then the rest of the route.
Awaitable<ForwardReply> forward(Node& node, ForwardRequest request) {
  check_request(node, request);
  const auto hops = resolve_route(request.route, node.self, node.topology);
  const int64_t position = request.past_len + request.hidden.tokens;
  const bool admitted = request.mode == CacheMode::kDecode || request.past_len > 0;
  StepInput step = to_step(node, request);
  TimedOutput timed = co_await node.shard.step(std::move(step), admitted);
  node.metrics.count_step(to_string(request.mode));
  const std::vector<Timing> own = {{"queue", node.self.name, timed.queue_ms},
                                   {"compute", node.self.name, timed.compute_ms}};
  node.metrics.observe(own);

  ForwardReply reply;
  if (auto* hidden = std::get_if<HiddenStates>(&timed.output)) {
    if (hops.empty()) {
      reply.result = std::move(*hidden);
    } else {
      request.hidden = std::move(*hidden);
      reply = co_await node.pipeline.carry(std::move(request), hops);
    }
  } else {
    reply = token_reply(node, request, position, std::get<std::optional<int64_t>>(timed.output));
  }
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
  std::string session;
  try {
    // The body alone: what is left still says in logs which request failed.
    HttpRequest taken(exchange.request.base(), std::move(exchange.request.body()));
    ForwardRequest request =
        parse_forward(std::move(taken),
                      {node.shard.dtype(), node.shard.config().hidden_size, node.max_context()});
    hop_index = request.hop_index;
    session = request.session;
    const AsyncRange range({.kind = "request",
                            .subject = request.trace,
                            .session = session,
                            .number = request.start_layer.value_or(node.shard.layers().first)});
    note_conversion(node, request.hidden.dtype);
    spdlog::debug("{}: {} of {} tokens, session {}, hop {}, request {}",
                  node.self.name,
                  to_string(request.mode),
                  request.hidden.tokens,
                  request.session,
                  request.hop_index,
                  request.trace);
    ForwardReply reply = co_await forward(node, std::move(request));
    node.metrics.count_request("/forward", 200);
    co_await exchange.send(format_forward_reply(reply));
  } catch (const HttpError& thrown) {
    if (!thrown.node.empty()) throw;  // of a later hop
    HttpError error = thrown;         // a batch may share it
    error.hop_index = hop_index;
    if (error.error == "cache_miss") {
      node.metrics.count_miss(error.reason);
      spdlog::info("session {}: missed ({}): {}", session, error.reason, error.what());
    }
    throw error;
  }
}

/// DELETE /sessions/{id}, percent-encoded.
Awaitable<void> handle_release(Node& node, Exchange& exchange) {
  const std::string_view path = path_of(exchange.request.target());
  const std::string session = percent_decode(path.substr(std::string_view("/sessions/").size()));
  const bool released = node.shard.release(session);
  if (node.tail_text) node.tail_text->release(session);
  co_await send_json(node,
                     exchange,
                     http::status::ok,
                     released ? R"({"released": true})" : R"({"released": false})");
}

}  // namespace

void add_forward_routes(Router& router, Node& node) {
  router.add(
      http::verb::post, "/forward", [&node](Exchange& e) { return handle_forward(node, e); });
  router.add(http::verb::delete_, "/sessions/{id}", [&node](Exchange& e) {
    return handle_release(node, e);
  });
}

}  // namespace meshnet
