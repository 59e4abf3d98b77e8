#include "runtime/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "models/config.h"
#include "runtime/chat_template.h"
#include "runtime/engine.h"
#include "runtime/generation_config.h"
#include "runtime/route.h"
#include "runtime/tokenizer.h"

namespace meshnet {
namespace {

class Report {
 public:
  void good(const std::string& line) { add("ok     ", line); }
  void note(const std::string& line) { add("note   ", line); }
  void bad(const std::string& line) {
    add("WRONG  ", line);
    report_.ok = false;
  }
  /// Runs a check that throws when something is wrong.
  template <class Function>
  void run(const std::string& subject, Function check) {
    try {
      check();
    } catch (const std::exception& error) {
      bad(subject + ": " + error.what());
    }
  }
  CheckReport take() { return std::move(report_); }

 private:
  void add(const char* mark, const std::string& line) {
    report_.text += fmt::format("{}{}\n", mark, line);
  }
  CheckReport report_;
};

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void check_memory(Report& report, const NodeSettings& node, int64_t weight_bytes) {
  const std::string device = resolve_device_name(node.device);
  const int64_t free = free_memory(device);
  const std::string line =
      fmt::format("{}: weights of layers {} take {:.0f} MiB on {}, {:.0f} MiB are free",
                  node.name,
                  to_string(node.layers),
                  mebibytes(weight_bytes),
                  device,
                  mebibytes(free));
  if (weight_bytes > free) {
    report.bad(line);
  } else {
    report.good(line);
  }
}

void check_texts(Report& report, const NodeSettings& node, const ModelConfig& config) {
  const Tokenizer tokenizer(node.model);
  const auto generation = read_generation_config(node.model, config, tokenizer);
  report.good(fmt::format(
      "{}: tokenizer, eos ids {}", node.name, fmt::join(generation.eos_token_ids, ", ")));
  if (generation.eos_token_ids.empty())
    report.note(node.name + ": no eos token is known: answers end only at max_tokens");
  if (!ChatTemplate::load(node.model))
    report.note(node.name + ": no chat template: only /v1/completions will work");
}

void check_node(Report& report, const NodeSettings& node, const ModelConfig& config) {
  report.run(node.name, [&] {
    const EngineOptions options{
        node.model, node.layers, node.dtype, node.device, node.threads, node.cache};
    const int64_t bytes = check_slice(options, config);
    report.good(fmt::format("{}: {} has every tensor of layers {}",
                            node.name,
                            node.model.string(),
                            to_string(node.layers)));
    check_memory(report, node, bytes);
  });
  const bool is_last = node.layers.last == config.num_hidden_layers;
  if (node.layers.first == 0 || is_last)
    report.run(node.name, [&] { check_texts(report, node, config); });
  report.run(node.name, [&] { read_cluster_token(node); });
  report.run(node.name, [&] { check_context(node, config.max_position_embeddings); });
}

void check_route(Report& report, const Topology& topology, int64_t num_hidden_layers) {
  const auto mistakes = check_layers(topology, num_hidden_layers);
  for (const auto& mistake : mistakes) report.bad(mistake);
  if (!mistakes.empty()) return;
  std::vector<RouteCandidate> candidates;
  for (const auto& node : topology.nodes) candidates.push_back({node.name, node.layers});
  for (const auto& head : topology.nodes) {
    if (head.layers.first != 0) continue;
    std::vector<std::string> hops;
    for (const auto& hop : choose_route(candidates, head.name, num_hidden_layers).hops) {
      hops.push_back(fmt::format("{} from layer {}", hop.name, hop.start_layer));
    }
    report.good(fmt::format("route from {}: {}", head.name, fmt::join(hops, ", then ")));
  }
}

}  // namespace

CheckReport check_topology(const Topology& topology, const std::string& only_node) {
  Report report;
  report.good(fmt::format("{}: {} node{}",
                          topology.file.string(),
                          topology.nodes.size(),
                          topology.nodes.size() == 1 ? "" : "s"));
  bool route_checked = false;
  for (const auto& node : topology.nodes) {
    if (!only_node.empty() && node.name != only_node) continue;
    report.run(node.name, [&] {
      const ModelConfig config = read_config(node.model);
      report.good(fmt::format("{}: {} is a {} of {} layers",
                              node.name,
                              node.model.string(),
                              config.model_type,
                              config.num_hidden_layers));
      if (!std::exchange(route_checked, true))
        check_route(report, topology, config.num_hidden_layers);
      if (node.layers.last <= config.num_hidden_layers) check_node(report, node, config);
    });
  }
  return report.take();
}

}  // namespace meshnet
