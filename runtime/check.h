#pragma once

#include <string>

#include "runtime/settings.h"

namespace meshnet {

/// What `meshnet check` found: a report for people, and whether anything is wrong.
struct CheckReport {
  std::string text;
  bool ok = true;
};

/// Checks layers and route of the topology, then for each node (or the one named): model directory,
/// architecture, the tensors of its layers, memory of the device, what session state costs, limits
/// of bodies, tokenizer and chat template. Loads no weights and opens no port.
CheckReport check_topology(const Topology& topology, const std::string& only_node);

}  // namespace meshnet
