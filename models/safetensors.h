#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace meshnet {

/// Where one tensor lies in the file: little-endian, at any alignment.
struct StoredTensor {
  std::string dtype;           ///< as the format spells it: "BF16", "F32", "F8_E4M3", ...
  std::vector<int64_t> shape;  ///< product × size of dtype = nbytes, checked
  std::size_t begin;           ///< bytes from the start of the file
  std::size_t nbytes;
};

/// A .safetensors file, open for reading. Nothing in it is believed before it is checked; the
/// constructor throws std::runtime_error naming the file, and the tensor where it is about one.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  /// Copies `into.size()` bytes of `tensor`, from its byte `first` on. Any thread may call it at
  /// any time. Throws std::runtime_error naming the file where the system fails, or where the file
  /// has become shorter since it was opened.
  void read(const StoredTensor& tensor, std::size_t first, std::span<std::byte> into) const;

 private:
  /// Closes it.
  class Descriptor {
   public:
    explicit Descriptor(const std::filesystem::path& path);
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return descriptor_; }

   private:
    int descriptor_;
  };

  void read_at(std::size_t position, std::span<std::byte> into) const;
  void parse();

  std::filesystem::path path_;
  Descriptor file_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace meshnet
