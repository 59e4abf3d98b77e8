#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshnet {

/// One tensor as it lies in the file.
struct StoredTensor {
  std::string dtype;                ///< as the format spells it: "BF16", "F32", "F8_E4M3", ...
  std::vector<int64_t> shape;       ///< product × size of dtype = data.size(), checked
  std::span<const std::byte> data;  ///< in the mapping, little-endian, at any alignment
};

/// A .safetensors file, mapped read-only. Nothing in it is believed before it is checked; the
/// constructor throws std::runtime_error naming the file, and the tensor where it is about one.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  /// Takes the pages under `data` out of this process's resident memory. They stay readable.
  void release_pages(std::span<const std::byte> data) const;

 private:
  void map();
  void parse();

  std::filesystem::path path_;
  std::span<const std::byte> mapping_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace meshnet
