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

  /// What an id is to decode(): left out (special, or outside the vocabulary), text of its own, or
  /// one byte of a byte-fallback run.
  enum class TokenKind { kSkipped, kWhole, kByte };
  TokenKind token_kind(int64_t id) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

/// Text of a growing sequence of ids: each push returns what is new, whole characters only. Joined,
/// the pieces are Tokenizer::decode of all ids. A window of the last few ids is decoded again at
/// every push, since a token's text depends on its neighbours.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  /// What this token adds; empty while a character is unfinished.
  std::string push(int64_t id);
  /// What is still held back at the end (a cut-off character becomes U+FFFD). Ready to start anew.
  std::string finish();

 private:
  std::string take(bool all);
  void shrink(std::size_t held_bytes);

  static constexpr std::size_t kMaxWindow = 64;

  const Tokenizer* tokenizer_;
  std::vector<int64_t> ids_;  ///< the window; ids without text never enter it
  std::size_t sent_ = 0;      ///< bytes of the window's text that have been returned
  std::size_t settled_ = 0;   ///< ids of the window before the newest piece
};

}  // namespace meshnet
