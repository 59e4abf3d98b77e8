#include "runtime/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "models/config.h"
#include "runtime/engine.h"

namespace meshnet {
namespace {

/// What a range takes, exactly as a node would hold it.
struct RangeBytes {
  int64_t weights = 0;
  int64_t session = 0;  ///< state of one session
};

RangeBytes bytes_of(const PlanOptions& options, const ModelConfig& config, LayerRange layers) {
  EngineOptions engine;
  engine.model_dir = options.model;
  engine.layers = layers;
  engine.device = "cpu";  // bytes are the same everywhere
  const int64_t weights = check_slice(engine, config);
  return {weights, plan_cache(engine, config, weights, options.tokens).session_bytes};
}

int64_t total_of(const PlanOptions& options, const RangeBytes& bytes) {
  return bytes.weights + options.sessions * bytes.session;
}

std::string in_units(int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  return mebibytes < 1024 ? fmt::format("{:.1f} MiB", mebibytes)
                          : fmt::format("{:.2f} GiB", mebibytes / 1024);
}

/// The memory of each node: one number stands for all; none is none.
std::vector<int64_t> memory_of_each(const PlanOptions& options) {
  const auto nodes = static_cast<std::size_t>(options.nodes);
  if (options.memory.size() == 1) return std::vector<int64_t>(nodes, options.memory.front());
  if (!options.memory.empty() && options.memory.size() != nodes) {
    throw std::runtime_error(
        fmt::format("--memory: expected one size or {}, one for each node, "
                    "got {}",
                    options.nodes,
                    options.memory.size()));
  }
  return options.memory;
}

}  // namespace

std::vector<LayerRange> balance(const std::vector<int64_t>& costs,
                                const std::vector<int64_t>& shares) {
  const std::size_t layers = costs.size();
  if (shares.size() > layers) {
    throw std::runtime_error(
        fmt::format("{} nodes are more than the model's {} layers", shares.size(), layers));
  }
  std::vector<double> before(layers + 1, 0.0);  // cost of the layers before each
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1, [](double sum, int64_t cost) {
    return sum + static_cast<double>(cost);
  });

  // best[n][end]: the smallest largest load of n nodes over the layers before `end`.
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector best(shares.size() + 1, std::vector<double>(layers + 1, kNone));
  std::vector cut(shares.size() + 1, std::vector<std::size_t>(layers + 1, 0));
  best[0][0] = 0.0;
  for (std::size_t node = 1; node <= shares.size(); ++node) {
    for (std::size_t end = node; end <= layers; ++end) {
      for (std::size_t first = node - 1; first < end; ++first) {
        const double own = (before[end] - before[first]) / static_cast<double>(shares[node - 1]);
        const double load = std::max(best[node - 1][first], own);
        if (load < best[node][end]) {
          best[node][end] = load;
          cut[node][end] = first;
        }
      }
    }
  }

  std::vector<LayerRange> ranges(shares.size());
  std::size_t end = layers;
  for (std::size_t node = shares.size(); node > 0; --node) {
    const std::size_t first = cut[node][end];
    ranges[node - 1] = {static_cast<int64_t>(first), static_cast<int64_t>(end)};
    end = first;
  }
  return ranges;
}

LayerPlan plan_layers(const PlanOptions& options) {
  const ModelConfig config = read_config(options.model);
  const std::vector<int64_t> memory = memory_of_each(options);
  std::vector<int64_t> costs;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    costs.push_back(total_of(options, bytes_of(options, config, {layer, layer + 1})));
  }
  const std::vector<int64_t> alike(static_cast<std::size_t>(options.nodes), 1);
  const auto ranges = balance(costs, memory.empty() ? alike : memory);

  LayerPlan plan;
  plan.text = fmt::format("{}: {} of {} layers, {}; total with {} sessions of {} tokens\n\n",
                          options.model.string(),
                          config.model_type,
                          config.num_hidden_layers,
                          to_string(checkpoint_dtype(config)),
                          options.sessions,
                          options.tokens);
  constexpr auto kRow = "{:<6} {:<9} {:>12} {:>15} {:>12} {:>12}\n";
  plan.text += fmt::format(kRow, "node", "layers", "weights", "state/session", "total", "memory");
  for (std::size_t node = 0; node < ranges.size(); ++node) {
    const RangeBytes bytes = bytes_of(options, config, ranges[node]);
    const int64_t total = total_of(options, bytes);
    const bool fits = memory.empty() || total <= memory[node];
    plan.fits = plan.fits && fits;
    plan.text += fmt::format(kRow,
                             node,
                             to_string(ranges[node]),
                             in_units(bytes.weights),
                             in_units(bytes.session),
                             in_units(total),
                             memory.empty() ? "-" : in_units(memory[node]));
  }
  if (!plan.fits) plan.text += "\nNot every node has the memory for its total.\n";
  return plan;
}

}  // namespace meshnet
