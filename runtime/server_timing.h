#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace meshnet {

/// One entry of a Server-Timing header: how long a part of a step took at a node.
/// `queue` and `compute` are the node's own, `wire` is the way to it and back, measured by its
/// sender.
struct Timing {
  std::string part;
  std::string node;
  double milliseconds = 0.0;
};

/// `queue;desc="tail";dur=0.041, compute;desc="tail";dur=12.300`
std::string format_server_timing(const std::vector<Timing>& timings);

/// What format_server_timing wrote; entries of other shapes (proxies add theirs) are left out.
std::vector<Timing> parse_server_timing(std::string_view header);

}  // namespace meshnet
