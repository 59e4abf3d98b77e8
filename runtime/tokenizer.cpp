#include "runtime/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/text_answer.h"

namespace meshnet {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

/// The answer's bytes; throws what the crate calls an error.
std::string_view checked(const TextAnswer& answer) {
  if (answer.status() != kTextOk) {
    throw std::runtime_error("tokenizer: " + answer.text());
  }
  return answer.bytes();
}

bool is_inside_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

}  // namespace

struct Tokenizer::Handle {
  explicit Handle(TextTokenizer* made) : tokenizer(made) {}
  ~Handle() { text_tokenizer_free(tokenizer); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  TextTokenizer* tokenizer;
};

Tokenizer::Tokenizer(const std::filesystem::path& model_dir) {
  const std::filesystem::path path = model_dir / "tokenizer.json";
  const std::string json = read_text_file(path);
  TextResult error{};
  TextTokenizer* tokenizer = text_tokenizer_new(text_data(json), json.size(), &error);
  if (tokenizer == nullptr) {
    throw std::runtime_error(path.string() + ": " + TextAnswer(error).text());
  }
  handle_ = std::make_unique<Handle>(tokenizer);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const TextAnswer answer(text_tokenizer_encode(
      handle_->tokenizer, text_data(text), text.size(), add_special_tokens ? 1 : 0));
  const std::string_view packed = checked(answer);
  std::vector<int64_t> ids(packed.size() / sizeof(int64_t));
  if (!ids.empty()) {
    std::memcpy(ids.data(), packed.data(), packed.size());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int64_t> ids) const {
  const TextAnswer answer(text_tokenizer_decode(handle_->tokenizer, ids.data(), ids.size()));
  return std::string(checked(answer));
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  const int64_t id = text_tokenizer_token_to_id(handle_->tokenizer, text_data(token), token.size());
  return id < 0 ? std::nullopt : std::optional(id);
}

Tokenizer::TokenKind Tokenizer::token_kind(int64_t id) const {
  return static_cast<TokenKind>(text_tokenizer_token_kind(handle_->tokenizer, id));
}

std::string Detokenizer::push(int64_t id) {
  switch (tokenizer_->token_kind(id)) {
    case Tokenizer::TokenKind::kSkipped:
      return {};
    case Tokenizer::TokenKind::kByte:
      // The decoder turns a whole run of bytes into U+FFFD when one of them does not fit: nothing
      // of the run is settled before it ends.
      ids_.push_back(id);
      return {};
    case Tokenizer::TokenKind::kWhole:
      ids_.push_back(id);
      return take(/*all=*/false);
  }
  return {};
}

std::string Detokenizer::finish() {
  std::string rest = take(/*all=*/true);
  *this = Detokenizer(*tokenizer_);
  return rest;
}

std::string Detokenizer::take(bool all) {
  const std::string text = tokenizer_->decode(ids_);
  std::size_t end = text.size();
  if (!all && text.ends_with(kReplacementCharacter)) {
    end -= kReplacementCharacter.size();  // perhaps a character whose other bytes are to come
  }
  std::size_t begin = std::min(sent_, end);
  while (begin < end && is_inside_character(text[begin])) {
    ++begin;  // a decoder that rewrites what it gave before can leave sent_ inside a character
  }
  sent_ = std::max(sent_, end);
  shrink(text.size() - end);
  return text.substr(begin, end - begin);
}

/// Drops ids from the window's front, but keeps some before what comes next, so that the decoder
/// sees that in the middle of a text (at its start many drop a space).
void Detokenizer::shrink(std::size_t held_bytes) {
  std::size_t drop = 0;
  if (held_bytes == 0) {
    drop = settled_;
    if (drop == 0) {
      settled_ = ids_.size();
    }
  } else if (ids_.size() > kMaxWindow) {
    // A long run of broken bytes: what its last byte means depends on three before it at most.
    drop = ids_.size() - kMaxWindow / 2;
  }
  if (drop == 0) {
    return;
  }
  const std::string kept = tokenizer_->decode(std::span(ids_).subspan(drop));
  if (kept.size() <= held_bytes) {
    return;  // no text to stand before what comes next: a larger window will have some
  }
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(drop));
  sent_ = kept.size() - held_bytes;
  settled_ = held_bytes == 0 ? ids_.size() : 0;
}

}  // namespace meshnet
