#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/layer_range.h"

namespace meshnet {

struct PlanOptions {
  std::filesystem::path model;
  int64_t nodes = 1;
  /// Bytes of each node's device, or one number for all; empty = all alike, not compared.
  std::vector<int64_t> memory;
  int64_t tokens = 4096;  ///< of a session
  int64_t sessions = 8;   ///< at once on every node
};

/// Cuts layers that cost so many bytes each into one range for each share, such that the largest
/// cost / share is as small as can be. Shares are above 0. Throws std::runtime_error where there
/// are more shares than layers.
std::vector<LayerRange> balance(const std::vector<int64_t>& costs,
                                const std::vector<int64_t>& shares);

struct LayerPlan {
  std::string text;  ///< a table for people
  bool fits = true;  ///< false where a node's total is above its memory
};

/// Proposes the layers of each node and says what they take. Reads config.json and the headers of
/// the weight files, no weights. Throws std::runtime_error.
LayerPlan plan_layers(const PlanOptions& options);

}  // namespace meshnet
