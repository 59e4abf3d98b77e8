#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace meshnet {

/// A checkpoint's chat template: chat_template.jinja, else chat_template of tokenizer_config.json
/// ("default" of a list of named ones). Rendered by minijinja with what Hugging Face adds: loop
/// controls, raise_exception, strftime_now, tojson, Python's string and dict methods, trim_blocks
/// and lstrip_blocks, bos_token and the other special tokens as variables.
class ChatTemplate {
 public:
  /// Empty when the model has none (the caller answers 400). Throws std::runtime_error naming the
  /// file when it does not parse.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model_dir);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// JSON array of messages (and of tools, or empty) → prompt text, generation prompt added.
  /// `kwargs`: JSON object or empty, more variables. Throws HttpError 400 kInvalidRequest
  /// with the template's own words from raise_exception, or with what it could not render.
  std::string render(std::string_view messages,
                     std::string_view tools,
                     std::string_view kwargs) const;

 private:
  struct Handle;
  explicit ChatTemplate(std::unique_ptr<Handle> handle);
  std::unique_ptr<Handle> handle_;
};

}  // namespace meshnet
