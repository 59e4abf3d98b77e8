#include "runtime/yaml_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

#include "net/parse_number.h"

namespace meshnet {
namespace {

/// Above every number a topology file may hold; the readers have bounds of their own.
constexpr int64_t kLargest = int64_t{1} << 50;

std::string expand_variables(std::string text) {
  for (auto open = text.find("${"); open != std::string::npos; open = text.find("${")) {
    const auto close = text.find('}', open);
    if (close == std::string::npos) throw Mistake("'${' without '}'");
    const std::string inner = text.substr(open + 2, close - open - 2);
    const auto colon = inner.find(":-");
    const std::string name = inner.substr(0, colon);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr && colon == std::string::npos) {
      throw Mistake(fmt::format("the environment variable {} is not set", name));
    }
    const std::string replacement = value != nullptr ? value : inner.substr(colon + 2);
    // A value is taken as it is: one that holds "${" would otherwise be expanded for ever.
    if (replacement.find("${") != std::string::npos)
      throw Mistake(fmt::format("'${{' in the value of {}", name));
    text.replace(open, close - open + 1, replacement);
  }
  return text;
}

}  // namespace

std::string read_text(const YAML::Node& node) {
  if (!node.IsScalar() || node.Scalar().empty()) throw Mistake("expected a value");
  return node.Scalar();
}

bool read_bool(const YAML::Node& node) { return read_one_of(node, {"true", "false"}) == "true"; }

int64_t parse_integer(const std::string& text, int64_t smallest) {
  const auto value = parse_number(text, kLargest);
  if (!value || *value < smallest || *value > int64_t{1} << 40) {
    throw Mistake(fmt::format("expected a whole number of at least {}, got '{}'", smallest, text));
  }
  return *value;
}

int64_t read_integer(const YAML::Node& node, int64_t smallest) {
  return parse_integer(read_text(node), smallest);
}

std::chrono::milliseconds read_milliseconds(const YAML::Node& node) {
  constexpr std::chrono::milliseconds kDay = std::chrono::hours(24);
  const int64_t count = read_integer(node, 1);
  if (count > kDay.count())
    throw Mistake(fmt::format("expected at most a day, {} ms, got {}", kDay.count(), count));
  return std::chrono::milliseconds(count);
}

int64_t read_bytes(const YAML::Node& node) {
  static const std::map<std::string, int64_t, std::less<>> kUnits = {
      {"", 1}, {"B", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", int64_t{1} << 30}};
  const std::string text = read_text(node);
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = parse_number(std::string_view(text).substr(0, digits), kLargest);
  const auto unit = kUnits.find(text.substr(digits));
  if (!number || *number < 1 || unit == kUnits.end() ||
      *number > (int64_t{1} << 50) / unit->second) {
    throw Mistake(fmt::format("expected a size like 64MiB or 1GiB, got '{}'", text));
  }
  return *number * unit->second;
}

LayerRange read_layers(const YAML::Node& node) {
  const std::string text = read_text(node);
  const auto dash = text.find('-');
  const auto first = parse_number(std::string_view(text).substr(0, dash), kLargest);
  const auto last = dash == std::string::npos
                        ? first
                        : parse_number(std::string_view(text).substr(dash + 1), kLargest);
  if (!first || !last || *first < 0 || *last < *first || *last > 100000) {
    throw Mistake(fmt::format("expected an inclusive range like 0-20, got '{}'", text));
  }
  return {*first, *last + 1};
}

std::string read_one_of(const YAML::Node& node, const std::vector<std::string>& allowed) {
  const std::string text = read_text(node);
  if (std::ranges::find(allowed, text) == allowed.end()) {
    throw Mistake(fmt::format("expected {}, got '{}'", fmt::join(allowed, " or "), text));
  }
  return text;
}

std::filesystem::path read_path(const YAML::Node& node) {
  std::string text = expand_variables(read_text(node));
  if (text.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    if (home == nullptr) throw Mistake("'~' needs the environment variable HOME");
    text.replace(0, 1, home);
  }
  return text;
}

void MapReader::read(const YAML::Node& map, const std::string& path, const Setters& setters) {
  if (!map.IsMap()) {
    add(map, path.empty() ? "the file" : path, "expected a mapping of keys to values");
    return;
  }
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key =
        entry.first.IsScalar() ? entry.first.Scalar() : "(a key that is no text)";
    const std::string full = path.empty() ? key : path + "." + key;
    const auto setter = setters.find(key);
    if (!seen.insert(key).second) {
      add(entry.first, full, "this key stands here twice");
    } else if (setter == setters.end()) {
      std::vector<std::string> known;
      for (const auto& [name, unused] : setters) known.push_back(name);
      add(entry.first, full, fmt::format("unknown key; known here: {}", fmt::join(known, ", ")));
    } else {
      try {
        setter->second(entry.second);
      } catch (const Mistake& mistake) {
        add(entry.second, full, mistake.what());
      } catch (const std::invalid_argument& error) {  // of parse_url and parse_listen
        add(entry.second, full, error.what());
      }
    }
  }
}

void MapReader::add(const YAML::Node& node, const std::string& path, const std::string& what) {
  mistakes_.push_back(
      fmt::format("{}:{}: {}: {}", file_.string(), node.Mark().line + 1, path, what));
}

void MapReader::check() const {
  if (!mistakes_.empty()) throw std::runtime_error(fmt::format("{}", fmt::join(mistakes_, "\n")));
}

}  // namespace meshnet
