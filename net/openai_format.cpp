#include <nlohmann/json.hpp>
#include <utility>

#include "net/json_input.h"
#include "net/openai.h"

namespace meshnet {
namespace {

using Json = nlohmann::ordered_json;

Json answer_head(const AnswerHead& head, const char* chat_object) {
  return {{"id", head.id},
          {"object", head.chat ? chat_object : "text_completion"},
          {"created", head.created},
          {"model", head.model}};
}

Json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

/// {"index", <content_key>: <content>, "logprobs", "finish_reason", token ids}
Json choice_json(const char* content_key, Json content, const ChoicePart& part) {
  Json choice{{"index", 0},
              {content_key, std::move(content)},
              {"logprobs", nullptr},
              {"finish_reason", text_or_null(part.finish_reason)}};
  if (part.prompt_token_ids) choice["prompt_token_ids"] = *part.prompt_token_ids;
  if (part.token_ids) choice["token_ids"] = *part.token_ids;
  return choice;
}

Json delta_json(const ChoicePart& part, bool first) {
  Json delta = Json::object();
  if (first) delta["role"] = "assistant";
  // The last chunk of a stream has an empty delta.
  if (first || !part.text.empty() || part.finish_reason.empty()) delta["content"] = part.text;
  return delta;
}

std::string error_type(unsigned status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

/// A key's text, or nothing when it is absent or something else.
std::string find_text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string format_answer(const AnswerHead& head, const ChoicePart& choice, const Usage& usage) {
  Json answer = answer_head(head, "chat.completion");
  const Json message{{"role", "assistant"}, {"content", choice.text}};
  answer["choices"] = Json::array({head.chat ? choice_json("message", message, choice)
                                             : choice_json("text", choice.text, choice)});
  answer["usage"] = usage_json(usage);
  return dump_json(answer);
}

std::string format_chunk(const AnswerHead& head, const ChoicePart& part, bool first) {
  Json chunk = answer_head(head, "chat.completion.chunk");
  chunk["choices"] = Json::array({head.chat ? choice_json("delta", delta_json(part, first), part)
                                            : choice_json("text", part.text, part)});
  return dump_json(chunk);
}

std::string format_usage_chunk(const AnswerHead& head, const Usage& usage) {
  Json chunk = answer_head(head, "chat.completion.chunk");
  chunk["choices"] = Json::array();
  chunk["usage"] = usage_json(usage);
  return dump_json(chunk);
}

std::string format_models(const std::string& id, int64_t created, int64_t max_model_len) {
  const Json model{{"id", id},
                   {"object", "model"},
                   {"created", created},
                   {"owned_by", "meshnet"},
                   {"max_model_len", max_model_len}};
  return dump_json({{"object", "list"}, {"data", Json::array({model})}});
}

std::string format_openai_error(const HttpError& error) {
  return dump_json({{"error",
                     {{"message", error.what()},
                      {"type", error_type(error.status)},
                      {"param", text_or_null(error.param)},
                      {"code", error.error}}}});
}

std::string format_node_error(const HttpError& error) {
  Json json{{"error", error.error}, {"message", error.what()}};
  if (!error.reason.empty()) json["reason"] = error.reason;
  json["node"] = error.node;
  json["hop_index"] = error.hop_index ? Json(*error.hop_index) : Json();
  json["layers"] = error.layers;
  return dump_json(json);
}

HttpError parse_node_error(unsigned status, const std::string& body) {
  Json json;
  try {
    json = parse_json(body, kMaxPeerJsonDepth);
  } catch (const std::invalid_argument&) {
    json = nullptr;  // not one of ours: answered below
  }
  const std::string code = json.is_object() ? find_text(json, "error") : "";
  constexpr std::size_t kMaxQuoted = 200;
  const std::string reason = json.is_object() ? find_text(json, "reason") : "";
  // Old nodes, and proxies between nodes, have error bodies of their own: here the status counts.
  if (status == 409 && (code != "cache_miss" || reason.empty())) {
    HttpError miss(409, "cache_miss", "a node answered 409: " + body.substr(0, kMaxQuoted));
    miss.reason = "unknown_session";
    return miss;
  }
  if (code.empty() && (status == 502 || status == 503 || status == 504)) {
    return {status,
            "hop_failed",
            "a node answered status " + std::to_string(status) + ": " + body.substr(0, kMaxQuoted)};
  }
  if (code.empty() || status < 400 || status > 599) {
    return {502,
            kBadAnswer,
            "a node answered status " + std::to_string(status) +
                " without an error of ours: " + body.substr(0, kMaxQuoted)};
  }
  HttpError error(status, code, find_text(json, "message"));
  error.reason = reason;
  error.node = find_text(json, "node");
  error.layers = find_text(json, "layers");
  const auto hop = json.find("hop_index");
  if (hop != json.end() && hop->is_number_integer()) error.hop_index = hop->get<int64_t>();
  return error;
}

}  // namespace meshnet
