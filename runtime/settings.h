#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layer_range.h"
#include "net/http_client.h"
#include "net/messages.h"

namespace meshnet {

/// Bounds of session state. Environment: MESHNET_KV_TTL_SECONDS,
/// MESHNET_KV_MAX_SESSIONS.
struct CacheSettings {
  bool enabled = true;
  std::chrono::seconds ttl{600};
  int64_t max_sessions = 8;
  std::optional<int64_t> max_bytes;  ///< empty = auto
};

struct LimitSettings {
  int64_t max_body = 64 << 20;  ///< bytes of one request or answer
  int64_t max_queue = 64;       ///< steps waiting for the compute thread
  int64_t prefill_chunk = 512;  ///< tokens
};

struct TimeoutSettings {
  std::chrono::milliseconds connect{2000};
  std::chrono::milliseconds decode{10000};          ///< of one hop's step
  std::chrono::milliseconds prefill_per_token{50};  ///< added to `decode` for each token of a step
};

/// One node of the topology, defaults and environment applied.
struct NodeSettings {
  std::string name;
  tcp::endpoint listen;
  Url url;
  LayerRange layers;

  std::filesystem::path model;
  std::string served_name;
  std::optional<Dtype> dtype;  ///< empty = the checkpoint's
  std::string device = "auto";
  int threads = 0;                     ///< 0 = all cores
  std::optional<int64_t> max_context;  ///< tokens; empty = the model's
  bool deterministic = false;
  CacheSettings cache;
  LimitSettings limits;
  TimeoutSettings timeouts;
  std::filesystem::path cluster_token_file;  ///< empty = none
  std::string log_level = "info";
};

/// The topology file: every node of the cluster, in file order.
struct Topology {
  std::filesystem::path file;
  std::vector<NodeSettings> nodes;

  /// Throws std::runtime_error listing the names there are.
  const NodeSettings& node(std::string_view name) const;
  const NodeSettings* find(std::string_view name) const;
};

/// Reads and checks a topology file. Throws std::runtime_error with one line per mistake,
/// "FILE:LINE: nodes.tail.layers: expected ..., got ...". What needs the model directory is checked
/// by check_layers().
Topology read_topology(const std::filesystem::path& file);

/// The bearer token between nodes: MESHNET_CLUSTER_TOKEN, else the first line of the node's token
/// file, else empty. Throws std::runtime_error when the file cannot be read or holds none.
std::string read_cluster_token(const NodeSettings& node);

/// Throws std::runtime_error when the node's max_context is beyond the model's positions.
void check_context(const NodeSettings& node, int64_t max_position_embeddings);

/// Layer ranges against the model's depth, and that they make at least one complete route. One
/// sentence per mistake.
std::vector<std::string> check_layers(const Topology& topology, int64_t num_hidden_layers);

}  // namespace meshnet
