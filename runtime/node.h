#pragma once

#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "net/asio.h"
#include "net/http_client.h"
#include "runtime/chat_template.h"
#include "runtime/generation.h"
#include "runtime/generation_config.h"
#include "runtime/metrics.h"
#include "runtime/peers.h"
#include "runtime/pipeline.h"
#include "runtime/settings.h"
#include "runtime/shard.h"
#include "runtime/tail_text.h"
#include "runtime/tokenizer.h"

namespace meshnet {

/// Everything one process has: its shard, its view of the others, and what the endpoints need. Made
/// once, by serve().
struct Node {
  /// Reads the model directory's texts (tokenizer, template, generation config) but not yet its
  /// weights: Shard::load does. Throws std::runtime_error with a sentence for the operator.
  Node(asio::any_io_executor executor,
       const Topology& all_nodes,
       const NodeSettings& settings,
       ModelConfig config);

  /// Why the node cannot serve right now, as a sentence; empty when it can.
  std::string unavailable_reason() const;
  /// Longest sequence, prompt and answer together, in tokens.
  int64_t max_context() const;

  const Topology& topology;
  const NodeSettings& self;
  std::string cluster_token;
  std::string model_fingerprint;
  std::string recipe_fingerprint;
  std::chrono::system_clock::time_point started = std::chrono::system_clock::now();
  std::set<Dtype> converted_dtypes;  ///< of hidden states that arrived in another dtype than ours
  Metrics metrics;
  HttpClient client;
  Shard shard;
  Peers peers;
  Pipeline pipeline;
  std::optional<Tokenizer> tokenizer;  ///< at the first and the last shard
  std::optional<TailText> tail_text;   ///< at the last shard
  std::optional<ChatTemplate> chat_template;
  GenerationConfig generation_config;
  std::optional<Generator> generator;  ///< where layer 0 is held
  asio::thread_pool text_thread{
      1};  ///< templates and tokenizer: a long prompt must not hold up the I/O thread
};

/// `meshnet serve`: runs one node until SIGINT or SIGTERM. Throws std::runtime_error when it cannot
/// start.
void serve(const Topology& topology, const NodeSettings& self);

}  // namespace meshnet
