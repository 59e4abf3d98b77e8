#include "runtime/server_timing.h"

#include <fmt/format.h>

#include <regex>

namespace meshnet {

std::string format_server_timing(const std::vector<Timing>& timings) {
  std::string header;
  for (const auto& timing : timings) {
    if (!header.empty()) header += ", ";
    header +=
        fmt::format("{};desc=\"{}\";dur={:.3f}", timing.part, timing.node, timing.milliseconds);
  }
  return header;
}

std::vector<Timing> parse_server_timing(std::string_view header) {
  static const std::regex kEntry(
      R"re((queue|compute|wire);desc="([A-Za-z0-9_.-]{1,64})";dur=([0-9]{1,12}\.[0-9]{1,6}))re");
  std::vector<Timing> timings;
  const std::string text(header.substr(0, 16 << 10));
  for (std::sregex_iterator match(text.begin(), text.end(), kEntry), end; match != end; ++match) {
    timings.push_back({(*match)[1], (*match)[2], std::stod((*match)[3])});
  }
  return timings;
}

}  // namespace meshnet
