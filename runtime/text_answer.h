#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "runtime/text_rs/text.h"

// What tokenizer.cpp and chat_template.cpp share of the way to the text crate.
namespace meshnet {

/// An answer of the crate, released when it goes out of scope.
class TextAnswer {
 public:
  explicit TextAnswer(TextResult result) : result_(result) {}
  ~TextAnswer() { text_free(result_); }
  TextAnswer(const TextAnswer&) = delete;
  TextAnswer& operator=(const TextAnswer&) = delete;

  int32_t status() const { return result_.status; }
  std::string_view bytes() const {
    return {reinterpret_cast<const char*>(result_.data), result_.size};
  }
  std::string text() const { return std::string(bytes()); }

 private:
  TextResult result_;
};

inline const uint8_t* text_data(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

inline std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path.string() + ": missing, or cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace meshnet
