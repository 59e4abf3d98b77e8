#include "runtime/settings.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "runtime/route.h"
#include "runtime/yaml_reader.h"

namespace meshnet {
namespace {

/// A number, or empty for "auto".
template <class Read>
std::optional<int64_t> read_auto_or(const YAML::Node& node, Read read) {
  if (read_text(node) == "auto") return std::nullopt;
  return read(node);
}

std::string read_device(const YAML::Node& node) {
  const std::string text = read_text(node);
  const bool is_cuda =
      text.starts_with("cuda:") && text.size() > 5 && text.size() < 8 &&
      std::all_of(text.begin() + 5, text.end(), [](unsigned char c) { return std::isdigit(c); });
  if (text != "auto" && text != "cpu" && !is_cuda) {
    throw Mistake(fmt::format("expected auto, cpu or cuda:N, got '{}'", text));
  }
  return text;
}

int read_threads(const YAML::Node& node) {
  const int64_t threads = read_integer(node, 0);
  if (threads > 1024) throw Mistake(fmt::format("expected at most 1024 threads, got {}", threads));
  return static_cast<int>(threads);
}

MapReader::Setters cache_setters(CacheSettings& cache) {
  return {
      {"enabled", [&](const YAML::Node& v) { cache.enabled = read_bool(v); }},
      {"ttl_seconds",
       [&](const YAML::Node& v) { cache.ttl = std::chrono::seconds(read_integer(v, 1)); }},
      {"max_sessions", [&](const YAML::Node& v) { cache.max_sessions = read_integer(v, 1); }},
      {"max_bytes", [&](const YAML::Node& v) { cache.max_bytes = read_auto_or(v, read_bytes); }}};
}

MapReader::Setters limit_setters(LimitSettings& limits) {
  return {
      {"max_body", [&](const YAML::Node& v) { limits.max_body = read_bytes(v); }},
      {"max_queue", [&](const YAML::Node& v) { limits.max_queue = read_integer(v, 1); }},
      {"prefill_chunk", [&](const YAML::Node& v) { limits.prefill_chunk = read_integer(v, 1); }}};
}

MapReader::Setters timeout_setters(TimeoutSettings& timeouts) {
  return {{"connect_ms", [&](const YAML::Node& v) { timeouts.connect = read_milliseconds(v); }},
          {"decode_ms", [&](const YAML::Node& v) { timeouts.decode = read_milliseconds(v); }},
          {"prefill_ms_per_token",
           [&](const YAML::Node& v) { timeouts.prefill_per_token = read_milliseconds(v); }}};
}

/// The keys that stand at the top of the file and, as overrides, in each node. `path` is where they
/// stand.
MapReader::Setters common_setters(NodeSettings& node, MapReader& reader, const std::string& path) {
  const auto nested = [&reader, path](const char* key, const MapReader::Setters& setters) {
    const std::string full = path.empty() ? key : path + "." + key;
    return [&reader, full, setters](const YAML::Node& map) { reader.read(map, full, setters); };
  };
  return {
      {"model", [&](const YAML::Node& v) { node.model = read_path(v); }},
      {"served_name", [&](const YAML::Node& v) { node.served_name = read_text(v); }},
      {"dtype",
       [&](const YAML::Node& v) {
         node.dtype = parse_dtype(read_one_of(v, {"auto", "float32", "bfloat16", "float16"}));
       }},
      {"device", [&](const YAML::Node& v) { node.device = read_device(v); }},
      {"threads", [&](const YAML::Node& v) { node.threads = read_threads(v); }},
      {"max_context",
       [&](const YAML::Node& v) {
         node.max_context = read_auto_or(v, [](const YAML::Node& n) { return read_integer(n, 2); });
       }},
      {"deterministic", [&](const YAML::Node& v) { node.deterministic = read_bool(v); }},
      {"cluster_token_file", [&](const YAML::Node& v) { node.cluster_token_file = read_path(v); }},
      {"log_level",
       [&](const YAML::Node& v) {
         node.log_level = read_one_of(v, {"trace", "debug", "info", "warn", "error"});
       }},
      {"cache", nested("cache", cache_setters(node.cache))},
      {"limits", nested("limits", limit_setters(node.limits))},
      {"timeouts", nested("timeouts", timeout_setters(node.timeouts))},
  };
}

/// MESHNET_KV_* override the file on every node.
void apply_environment(NodeSettings& node) {
  const auto read = [](const char* name, auto apply) {
    const char* value = std::getenv(name);
    if (value == nullptr) return;
    try {
      apply(parse_integer(value, 1));
    } catch (const Mistake& mistake) {
      throw std::runtime_error(fmt::format("environment variable {}: {}", name, mistake.what()));
    }
  };
  read("MESHNET_KV_TTL_SECONDS", [&](int64_t n) { node.cache.ttl = std::chrono::seconds(n); });
  read("MESHNET_KV_MAX_SESSIONS", [&](int64_t n) { node.cache.max_sessions = n; });
}

NodeSettings read_node(const YAML::Node& entry,
                       const std::string& name,
                       NodeSettings node,
                       MapReader& reader) {
  node.name = name;
  const std::string path = "nodes." + name;
  auto setters = common_setters(node, reader, path);
  setters["listen"] = [&](const YAML::Node& v) { node.listen = parse_listen(read_text(v)); };
  setters["url"] = [&](const YAML::Node& v) { node.url = parse_url(read_text(v)); };
  setters["layers"] = [&](const YAML::Node& v) { node.layers = read_layers(v); };
  reader.read(entry, path, setters);
  if (!entry.IsMap()) return node;

  const auto require = [&](const char* key, const char* what) {
    if (!entry[key])
      reader.add(entry, path + "." + key, fmt::format("this key is required: {}", what));
  };
  require("listen", "the address to bind, like 0.0.0.0:8001");
  require("url", "where the other nodes reach this one, like http://10.0.0.1:8001");
  require("layers", "an inclusive range like 0-20");
  if (node.model.empty())
    reader.add(entry, path + ".model", "give the model here or at the top of the file");
  if (node.served_name.empty()) node.served_name = node.model.filename().string();
  return node;
}

/// A node's name must be one, and neither name nor url may be another node's.
void check_unique(const Topology& others,
                  const NodeSettings& node,
                  const YAML::Node& key,
                  MapReader& reader) {
  const std::string path = "nodes." + node.name;
  if (!is_node_name(node.name)) {
    reader.add(key, path, "a node name has 1 to 64 letters, digits, '-', '_' or '.'");
  }
  for (const auto& other : others.nodes) {
    if (other.name == node.name) reader.add(key, path, "this node stands here twice");
    if (other.url == node.url && node.url.port != 0) {
      reader.add(key,
                 path + ".url",
                 fmt::format("{} is the url of '{}', too", authority(node.url), other.name));
    }
  }
}

YAML::Node load_yaml(const std::filesystem::path& file) {
  try {
    return YAML::LoadFile(file.string());
  } catch (const YAML::BadFile&) {
    throw std::runtime_error(fmt::format("cannot read the configuration file {}", file.string()));
  } catch (const YAML::Exception& error) {
    throw std::runtime_error(
        fmt::format("{}:{}: not valid YAML: {}", file.string(), error.mark.line + 1, error.msg));
  }
}

}  // namespace

Topology read_topology(const std::filesystem::path& file) {
  const YAML::Node root = load_yaml(file);
  Topology topology{file, {}};
  MapReader reader(file);
  NodeSettings defaults;
  YAML::Node nodes;
  auto setters = common_setters(defaults, reader, "");
  setters["nodes"] = [&](const YAML::Node& map) { nodes.reset(map); };
  reader.read(root, "", setters);

  if (!nodes.IsMap() || nodes.size() == 0) {
    reader.add(root, "nodes", "expected a mapping of node names to listen, url and layers");
  } else {
    for (const auto& entry : nodes) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      NodeSettings node = read_node(entry.second, name, defaults, reader);
      apply_environment(node);
      check_unique(topology, node, entry.first, reader);
      topology.nodes.push_back(std::move(node));
    }
  }
  reader.check();
  return topology;
}

const NodeSettings* Topology::find(std::string_view name) const {
  const auto node = std::ranges::find(nodes, name, &NodeSettings::name);
  return node == nodes.end() ? nullptr : &*node;
}

const NodeSettings& Topology::node(std::string_view name) const {
  if (const auto* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const auto& node : nodes) names.push_back(node.name);
  throw std::runtime_error(
      fmt::format("{} has no node '{}'; it has {}", file.string(), name, fmt::join(names, ", ")));
}

std::string read_cluster_token(const NodeSettings& node) {
  if (const char* token = std::getenv("MESHNET_CLUSTER_TOKEN"); token != nullptr && *token != '\0')
    return token;
  if (node.cluster_token_file.empty()) return {};
  std::ifstream in(node.cluster_token_file);
  std::string token;
  std::getline(in, token);
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) {
    throw std::runtime_error(fmt::format("cluster_token_file: no token can be read from {}",
                                         node.cluster_token_file.string()));
  }
  return token;
}

void check_context(const NodeSettings& node, int64_t max_position_embeddings) {
  if (node.max_context.value_or(0) <= max_position_embeddings) return;
  throw std::runtime_error(
      fmt::format("nodes.{}.max_context: {} is beyond the model's {} positions",
                  node.name,
                  *node.max_context,
                  max_position_embeddings));
}

std::vector<std::string> check_layers(const Topology& topology, int64_t num_hidden_layers) {
  std::vector<std::string> mistakes;
  for (const auto& node : topology.nodes) {
    if (node.layers.last > num_hidden_layers) {
      mistakes.push_back(
          fmt::format("nodes.{}.layers: {} goes beyond the model, whose layers are 0-{}",
                      node.name,
                      to_string(node.layers),
                      num_hidden_layers - 1));
    }
  }
  std::vector<RouteCandidate> candidates;
  for (const auto& node : topology.nodes) candidates.push_back({node.name, node.layers});
  if (const auto gap = first_gap(candidates, num_hidden_layers); gap.size() > 0) {
    mistakes.push_back(
        fmt::format("nodes: no complete route: no node holds layers {}", to_string(gap)));
  }
  return mistakes;
}

}  // namespace meshnet
