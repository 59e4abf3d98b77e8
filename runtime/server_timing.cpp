#include "runtime/server_timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "net/messages.h"

namespace meshnet {
namespace {

constexpr std::size_t kMaxHeader = 16 << 10;

/// Takes what stands before `end` off the text, `end` too; false when `end` is not there.
bool take_until(std::string_view& text, std::string_view end, std::string_view& taken) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return false;
  taken = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return true;
}

/// `queue;desc="tail";dur=0.041`; nothing for any other shape. By hand: it is read at every step,
/// and std::regex takes as long for it as a hop.
std::optional<Timing> parse_entry(std::string_view entry) {
  while (entry.starts_with(' ')) entry.remove_prefix(1);
  std::string_view part;
  std::string_view node;
  if (!take_until(entry, ";desc=\"", part) || !take_until(entry, "\";dur=", node)) return {};
  const bool known = part == "queue" || part == "compute" || part == "wire";
  if (!known || !is_node_name(node)) return {};
  double milliseconds = 0;
  const char* end = entry.data() + entry.size();
  const auto [stop, error] =
      std::from_chars(entry.data(), end, milliseconds, std::chars_format::fixed);
  if (error != std::errc{} || stop != end || !(milliseconds >= 0 && milliseconds < 1e12)) return {};
  return Timing{std::string(part), std::string(node), milliseconds};
}

}  // namespace

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
  std::vector<Timing> timings;
  header = header.substr(0, kMaxHeader);
  while (!header.empty()) {
    const std::size_t end = std::min(header.find(','), header.size());
    if (auto timing = parse_entry(header.substr(0, end))) timings.push_back(std::move(*timing));
    header.remove_prefix(std::min(end + 1, header.size()));
  }
  return timings;
}

}  // namespace meshnet
