#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layer_range.h"

namespace meshnet {

/// A node that may be part of a route.
struct RouteCandidate {
  std::string name;
  LayerRange layers;
};

/// One node of a route and the first layer it runs there; it always runs to its own last layer.
struct RouteHop {
  std::string name;
  int64_t start_layer = 0;
  bool operator==(const RouteHop&) const = default;
};

/// Nodes that together run every layer exactly once, or as far as the candidates reach.
struct Route {
  std::vector<RouteHop> hops;  ///< the first is the head
  int64_t reached = 0;         ///< layers [0, reached) are covered
  int64_t num_hidden_layers = 0;

  bool complete() const { return reached == num_hidden_layers; }
};

/// The route from `head` with the fewest hops: from each layer on, the candidate that reaches
/// farthest, the first named on a tie. `head` must be among the candidates and hold layer 0.
Route choose_route(std::span<const RouteCandidate> candidates,
                   std::string_view head,
                   int64_t num_hidden_layers);

/// The first layers that no candidate holds; empty when all are held, and then any node with layer
/// 0 has a route.
LayerRange first_gap(std::span<const RouteCandidate> candidates, int64_t num_hidden_layers);

}  // namespace meshnet
