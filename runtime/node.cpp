#include "runtime/node.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <cstdlib>
#include <exception>
#include <stdexcept>

#include "net/http_server.h"
#include "runtime/handlers.h"

namespace meshnet {
namespace {

EngineOptions engine_options(const NodeSettings& self) {
  return {self.model, self.layers, self.dtype, self.device, self.threads, self.cache};
}

/// Decode steps that may run as one, where a sequence's arithmetic may depend on its company.
constexpr int64_t kMaxBatch = 16;

ServerLimits server_limits(const NodeSettings& self) {
  ServerLimits limits;
  limits.max_body = static_cast<std::size_t>(self.limits.max_body);
  return limits;
}

void warn_if_open(const NodeSettings& self, const std::string& cluster_token) {
  if (!cluster_token.empty() || self.listen.address().is_loopback()) return;
  spdlog::warn(
      "ANYONE who reaches {} can use this node's /forward, /sessions and /status: it listens "
      "beyond loopback without a "
      "cluster token. Set cluster_token_file or MESHNET_CLUSTER_TOKEN on every node",
      authority({self.listen.address().to_string(), self.listen.port()}));
}

/// Loads the layers, then (at a head) watches the other nodes for as long as the process lives.
Awaitable<void> start(Node& node) {
  const auto& self = node.self;
  spdlog::info(
      "{}: loading layers {} of {}", self.name, to_string(self.layers), self.model.string());
  co_await node.shard.load();
  spdlog::info("{}: layers {} ready on {} in {}, {:.1f} MiB of weights",
               self.name,
               to_string(self.layers),
               node.shard.device(),
               to_string(node.shard.dtype()),
               static_cast<double>(node.shard.nbytes()) / (1 << 20));
  if (const CacheStatus cache = node.shard.cache_status(); !cache.enabled) {
    spdlog::warn("{}: keeps no session state: {}", self.name, cache.disabled_reason);
  }
  if (node.shard.is_first() && !node.shard.is_last()) co_await node.peers.watch();
}

}  // namespace

Node::Node(asio::any_io_executor executor,
           const Topology& all_nodes,
           const NodeSettings& settings,
           ModelConfig config)
    : topology(all_nodes),
      self(settings),
      cluster_token(read_cluster_token(settings)),
      model_fingerprint(fingerprint(config)),
      recipe_fingerprint(meshnet::recipe_fingerprint(config)),
      client(executor,
             {settings.timeouts.connect, static_cast<std::size_t>(settings.limits.max_body)}),
      shard(engine_options(settings),
            std::move(config),
            settings.limits.max_queue,
            settings.deterministic ? 1 : kMaxBatch),
      peers(
          client, topology, self, cluster_token, model_fingerprint, shard.config(), shard.dtype()),
      pipeline(client, self, cluster_token, std::min(self.limits.prefill_chunk, max_context())) {
  if (!shard.is_first() && !shard.is_last()) return;
  tokenizer.emplace(self.model);
  if (shard.is_last()) tail_text.emplace(*tokenizer, self.cache.max_sessions);
  if (!shard.is_first()) return;
  chat_template = ChatTemplate::load(self.model);
  generation_config = read_generation_config(self.model, shard.config(), *tokenizer);
  generator.emplace(
      RouteContext{
          shard, peers, pipeline, self, model_fingerprint, recipe_fingerprint, *tokenizer, metrics},
      generation_config);
}

std::string Node::unavailable_reason() const {
  if (!shard.ready()) return "the node is still loading its layers";
  return shard.is_first() ? peers.unavailable_reason() : std::string();
}

int64_t Node::max_context() const {
  return self.max_context.value_or(shard.config().max_position_embeddings);
}

namespace {

/// The model's configuration, and that it and the topology fit together.
ModelConfig checked_config(const Topology& topology, const NodeSettings& self) {
  ModelConfig config = read_config(self.model);
  check_context(self, config.max_position_embeddings);
  if (const auto mistakes = check_layers(topology, config.num_hidden_layers); !mistakes.empty()) {
    throw std::runtime_error(
        fmt::format("{}: {}", topology.file.string(), fmt::join(mistakes, "\n")));
  }
  return config;
}

/// Runs until a signal or a failed start. Everything ends by itself, so that no coroutine outlives
/// the node: run() returns when nothing is left to wait for.
void run_until_stopped(asio::io_context& io, Node& node, HttpServer& server) {
  std::exception_ptr failure;
  asio::cancellation_signal stop_start;
  asio::signal_set signals(io, SIGINT, SIGTERM);
  const auto shut_down = [&] {
    stop_start.emit(asio::cancellation_type::terminal);
    signals.cancel();
    signals.clear();  // a second signal ends the process at once
    asio::co_spawn(io, server.stop(), asio::detached);
  };
  signals.async_wait([&](const boost::system::error_code& error, int signal) {
    if (error) return;
    spdlog::info("{}: stopping ({})", node.self.name, signal == SIGINT ? "SIGINT" : "SIGTERM");
    // A load cannot be interrupted, and there is nothing yet that an orderly end would save.
    if (!node.shard.ready()) std::_Exit(0);
    shut_down();
  });
  asio::co_spawn(io,
                 start(node),
                 asio::bind_cancellation_slot(stop_start.slot(), [&](std::exception_ptr error) {
                   if (error == nullptr || node.shard.ready()) return;
                   failure = error;
                   shut_down();
                 }));

  io.run();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void serve(const Topology& topology, const NodeSettings& self) {
  ModelConfig config = checked_config(topology, self);
  asio::io_context io(1);
  Node node(io.get_executor(), topology, self, std::move(config));
  warn_if_open(self, node.cluster_token);
  HttpServer server(io.get_executor(),
                    self.listen,
                    server_limits(self),
                    make_handler(node),
                    make_error_formatter(node),
                    make_header_check(node));
  spdlog::info("{}: listening on {}",
               self.name,
               authority({self.listen.address().to_string(), server.local_endpoint().port()}));
  run_until_stopped(io, node, server);
}

}  // namespace meshnet
