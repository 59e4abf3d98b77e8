#include "runtime/chat_template.h"

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "net/http_error.h"
#include "runtime/text_answer.h"

namespace meshnet {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json read_object(const fs::path& path) {
  if (!fs::exists(path)) {
    return Json::object();
  }
  Json content = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  if (!content.is_object()) {
    throw std::runtime_error(path.string() + ": not a JSON object");
  }
  return content;
}

/// {"default": ..., "tool_use": ...}, perhaps empty. `origin` becomes the file they come from.
Json read_sources(const fs::path& model_dir, const Json& config, fs::path& origin) {
  Json sources = Json::object();
  origin = model_dir / "chat_template.jinja";
  if (fs::exists(origin)) {
    sources["default"] = read_text_file(origin);
    const fs::path tool_use = model_dir / "additional_chat_templates" / "tool_use.jinja";
    if (fs::exists(tool_use)) {
      sources["tool_use"] = read_text_file(tool_use);
    }
    return sources;
  }
  origin = model_dir / "tokenizer_config.json";
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) {
    return sources;
  }
  if (found->is_string()) {
    sources["default"] = *found;
    return sources;
  }
  try {
    for (const Json& named : *found) {
      sources[named.at("name").get<std::string>()] = named.at("template").get<std::string>();
    }
  } catch (const Json::exception&) {
    throw std::runtime_error(origin.string() +
                             ": chat_template: expected a string or a list of {name, template}");
  }
  if (!sources.contains("default")) {
    throw std::runtime_error(origin.string() + ": chat_template: none of the list is \"default\"");
  }
  return sources;
}

/// Adds every NAME_token of `source` as plain text; a token is a string or an object with one.
void add_special_tokens(const Json& source, Json& tokens) {
  for (const auto& [name, value] : source.items()) {
    const bool is_object = value.is_object() && value.contains("content");
    const Json& token = is_object ? value.at("content") : value;
    if (name.ends_with("_token") && token.is_string()) {
      tokens[name] = token;
    }
  }
}

/// bos_token and the like. As in transformers, special_tokens_map.json counts only beside an old
/// tokenizer_config.json, and then more than that.
Json read_special_tokens(const fs::path& model_dir, const Json& config) {
  Json tokens = Json::object();
  add_special_tokens(config, tokens);
  if (!config.contains("added_tokens_decoder")) {
    add_special_tokens(read_object(model_dir / "special_tokens_map.json"), tokens);
  }
  return tokens;
}

}  // namespace

struct ChatTemplate::Handle {
  explicit Handle(TextTemplate* made) : compiled(made) {}
  ~Handle() { text_template_free(compiled); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  TextTemplate* compiled;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::optional<ChatTemplate> ChatTemplate::load(const fs::path& model_dir) {
  const Json config = read_object(model_dir / "tokenizer_config.json");
  fs::path origin;
  const Json sources = read_sources(model_dir, config, origin);
  if (sources.empty()) {
    return std::nullopt;
  }
  const std::string sources_text = sources.dump();
  const std::string tokens_text = read_special_tokens(model_dir, config).dump();
  TextResult error{};
  TextTemplate* compiled = text_template_new(text_data(sources_text),
                                             sources_text.size(),
                                             text_data(tokens_text),
                                             tokens_text.size(),
                                             &error);
  if (compiled == nullptr) {
    throw std::runtime_error(origin.string() + ": chat template, " + TextAnswer(error).text());
  }
  return ChatTemplate(std::make_unique<Handle>(compiled));
}

std::string ChatTemplate::render(std::string_view messages,
                                 std::string_view tools,
                                 std::string_view kwargs) const {
  const TextAnswer answer(text_template_render(handle_->compiled,
                                               text_data(messages),
                                               messages.size(),
                                               text_data(tools),
                                               tools.size(),
                                               text_data(kwargs),
                                               kwargs.size()));
  switch (answer.status()) {
    case kTextOk:
      return answer.text();
    case kTextRaised:
      throw HttpError(400, kInvalidRequest, answer.text());
    default:
      throw HttpError(400, kInvalidRequest, "chat template, " + answer.text());
  }
}

}  // namespace meshnet
