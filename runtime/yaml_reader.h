#pragma once

#include <yaml-cpp/yaml.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/layer_range.h"

namespace meshnet {

/// A value of a YAML file that is not what its key expects; says expected and got.
struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Values of scalars. All throw Mistake.
std::string read_text(const YAML::Node& node);
bool read_bool(const YAML::Node& node);
int64_t read_integer(const YAML::Node& node, int64_t smallest);
int64_t parse_integer(const std::string& text, int64_t smallest);
std::chrono::milliseconds read_milliseconds(const YAML::Node& node);
/// "64MiB", "1GiB", "4096" -> bytes.
int64_t read_bytes(const YAML::Node& node);
/// "0-20" or "7" -> half-open.
LayerRange read_layers(const YAML::Node& node);
std::string read_one_of(const YAML::Node& node, const std::vector<std::string>& allowed);
/// ${NAME} and ${NAME:-default} from the environment, then a leading ~/ from HOME.
std::filesystem::path read_path(const YAML::Node& node);

/// Walks mappings of a YAML file: every key is read by its setter. Mistakes are collected with
/// file, line and the key's full path, so that one run shows them all: "FILE:LINE:
/// nodes.tail.layers: expected ..., got ...".
class MapReader {
 public:
  using Setters = std::map<std::string, std::function<void(const YAML::Node&)>>;

  explicit MapReader(std::filesystem::path file) : file_(std::move(file)) {}

  /// `path` of the mapping itself; empty for the whole file. Unknown and repeated keys are
  /// mistakes.
  void read(const YAML::Node& map, const std::string& path, const Setters& setters);
  void add(const YAML::Node& node, const std::string& path, const std::string& what);
  void add(const std::string& line) { mistakes_.push_back(line); }
  /// Throws std::runtime_error with one line per mistake, if there are any.
  void check() const;

 private:
  std::filesystem::path file_;
  std::vector<std::string> mistakes_;
};

}  // namespace meshnet
