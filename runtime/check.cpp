#include "runtime/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "models/config.h"
#include "net/messages.h"
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

void check_state(Report& report,
                 const NodeSettings& node,
                 const EngineOptions& options,
                 const ModelConfig& config,
                 int64_t weight_bytes) {
  const int64_t tokens = node.max_context.value_or(config.max_position_embeddings);
  const CachePlan plan = plan_cache(options, config, weight_bytes, tokens);
  if (!plan.disabled_reason.empty()) {
    report.note(fmt::format("{}: no session state, since {}: every token costs a whole prefill",
                            node.name,
                            plan.disabled_reason));
    return;
  }
  const int64_t fit =
      std::min(plan.max_bytes / std::max<int64_t>(1, plan.session_bytes), node.cache.max_sessions);
  const std::string line = fmt::format(
      "{}: session state takes {} bytes a token, {:.1f} MiB for {} tokens; the budget "
      "of {:.0f} MiB holds {} of {} sessions of that length",
      node.name,
      plan.bytes_per_token,
      mebibytes(plan.session_bytes),
      tokens,
      mebibytes(plan.max_bytes),
      fit,
      node.cache.max_sessions);
  if (fit == 0) {
    report.note(line + ": longer ones end with session_exceeds_budget");
  } else {
    report.good(line);
  }
}

/// Whether the hidden states that arrive here fit into one body: chunks must, whole prompts need
/// not where all nodes take chunks.
void check_bodies(Report& report,
                  const Topology& topology,
                  const NodeSettings& node,
                  const ModelConfig& config) {
  constexpr int64_t kMetaBytes = 1 << 10;  // sampling parameters stand before the tensor
  int64_t context = 0;
  int64_t chunk = 0;
  std::size_t element = 0;
  for (const auto& sender : topology.nodes) {
    if (sender.layers.last >= node.layers.last) continue;  // a route goes up
    element = std::max(element, size_of(sender.dtype.value_or(checkpoint_dtype(config))));
    if (sender.layers.first != 0) continue;
    const int64_t longest = sender.max_context.value_or(config.max_position_embeddings);
    context = std::max(context, longest);
    chunk = std::max(chunk, std::min(longest, sender.limits.prefill_chunk));
  }
  if (chunk == 0) return;
  const int64_t bytes_per_token = config.hidden_size * static_cast<int64_t>(element);
  const int64_t max_body = node.limits.max_body;
  const int64_t fit = std::max<int64_t>(0, max_body - kMetaBytes) / bytes_per_token;
  if (fit < chunk) {
    report.bad(
        fmt::format("{}: limits.max_body: expected at least {} bytes, for prefill_chunk, {} tokens "
                    "of {} bytes each, got {}",
                    node.name,
                    chunk * bytes_per_token + kMetaBytes,
                    chunk,
                    bytes_per_token,
                    max_body));
  } else if (fit < context) {
    report.note(
        fmt::format("{}: limits.max_body, {} bytes, holds {} of max_context's {} tokens: longer "
                    "prompts arrive only in chunks, so not where a node of the route keeps no "
                    "state or speaks protocol 0",
                    node.name,
                    max_body,
                    fit,
                    context));
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

void check_node(Report& report,
                const Topology& topology,
                const NodeSettings& node,
                const ModelConfig& config) {
  report.run(node.name, [&] {
    const EngineOptions options{
        node.model, node.layers, node.dtype, node.device, node.threads, node.cache};
    const int64_t bytes = check_slice(options, config);
    report.good(fmt::format("{}: {} has every tensor of layers {}",
                            node.name,
                            node.model.string(),
                            to_string(node.layers)));
    check_memory(report, node, bytes);
    check_state(report, node, options, config, bytes);
  });
  check_bodies(report, topology, node, config);
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
      if (node.layers.last <= config.num_hidden_layers) check_node(report, topology, node, config);
    });
  }
  return report.take();
}

}  // namespace meshnet
