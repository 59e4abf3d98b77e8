#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace meshnet::text_test {

/// The folder that make_golden.py filled for this binary.
inline std::filesystem::path golden_dir() {
  const char* dir = std::getenv("MESHNET_TEXT_GOLDEN");
  if (dir == nullptr) {
    throw std::runtime_error("MESHNET_TEXT_GOLDEN is not set: run this test through ctest");
  }
  return dir;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error(path.string() + ": missing; make_golden.py makes it");
  }
  return nlohmann::json::parse(file);
}

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

/// An empty folder of its own, gone with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "meshnet_text_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error("cannot make a temporary folder");
    }
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Whole characters only; the JSON writer refuses anything else.
inline bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace meshnet::text_test
