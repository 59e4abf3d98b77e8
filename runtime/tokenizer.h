#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshnet {

/// A checkpoint's tokenizer.json, by the Hugging Face `tokenizers` crate. Immutable; used from any
/// thread.
class Tokenizer {
 public:
  /// Throws std::runtime_error naming the file and the parser's words.
  explicit Tokenizer(const std::filesystem::path& model_dir);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  /// UTF-8 text → ids. `add_special_tokens` lets the post-processor add BOS and the like (raw
  /// prompts, not chats).
  std::vector<int64_t> encode(std::string_view text, bool add_special_tokens) const;
  /// Ids → text, special tokens left out. Ids outside the vocabulary add nothing. Broken UTF-8
  /// comes out as U+FFFD.
  std::string decode(std::span<const int64_t> ids) const;
  std::optional<int64_t> token_to_id(std::string_view token) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

/// Text of a growing sequence of ids: each push returns what is new, whole characters only.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  /// What this token adds; empty while a character is unfinished.
  std::string push(int64_t id);
  /// What is still held back at the end (a cut-off character becomes U+FFFD).
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::vector<int64_t> ids_;
  std::size_t prefix_ = 0;  ///< first id of the window that is decoded again
  std::size_t read_ = 0;    ///< ids whose text has been returned
};

}  // namespace meshnet
