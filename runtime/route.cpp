#include "runtime/route.h"

#include <algorithm>

namespace meshnet {

Route choose_route(std::span<const RouteCandidate> candidates,
                   std::string_view head,
                   int64_t num_hidden_layers) {
  Route route{{}, 0, num_hidden_layers};
  const auto first = std::ranges::find(candidates, head, &RouteCandidate::name);
  if (first == candidates.end() || !first->layers.contains(0)) return route;
  route.hops.push_back({first->name, 0});
  route.reached = first->layers.last;

  while (!route.complete()) {
    const RouteCandidate* best = nullptr;
    for (const auto& candidate : candidates) {
      if (!candidate.layers.contains(route.reached)) continue;
      if (best == nullptr || candidate.layers.last > best->layers.last) best = &candidate;
    }
    if (best == nullptr) return route;
    route.hops.push_back({best->name, route.reached});
    route.reached = best->layers.last;
  }
  return route;
}

LayerRange first_gap(std::span<const RouteCandidate> candidates, int64_t num_hidden_layers) {
  const auto held = [&](int64_t layer) {
    return std::ranges::any_of(candidates, [&](const auto& c) { return c.layers.contains(layer); });
  };
  LayerRange gap;
  while (gap.first < num_hidden_layers && held(gap.first)) ++gap.first;
  gap.last = gap.first;
  while (gap.last < num_hidden_layers && !held(gap.last)) ++gap.last;
  return gap;
}

}  // namespace meshnet
