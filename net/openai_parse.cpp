#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "net/json_fields.h"
#include "net/json_input.h"
#include "net/openai.h"

namespace meshnet {
namespace {

using namespace json_fields;

/// A template takes time for every message; no conversation has more.
constexpr std::size_t kMaxMessages = 10'000;

constexpr std::size_t kMaxStops = 16;

/// Fields of the OpenAI API (and of vLLM) that would change the answer and that nothing here does
/// yet: anything but the value that asks for nothing is refused, since to ignore it would answer
/// another question.
struct Fixed {
  const char* field;
  const char* value;  // JSON; null where only absence will do
};
constexpr Fixed kFixedFields[] = {
    {"n", "1"},
    {"presence_penalty", "0"},
    {"frequency_penalty", "0"},
    {"repetition_penalty", "1"},
    {"logit_bias", "{}"},
    {"min_p", "0"},
    {"min_tokens", "0"},
    {"ignore_eos", "false"},
    {"stop_token_ids", "[]"},
    {"logprobs", "false"},
    {"structured_outputs", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
};
constexpr Fixed kFixedChatFields[] = {
    {"top_logprobs", "0"},
    {"response_format", R"({"type":"text"})"},
    {"modalities", R"(["text"])"},
    {"audio", "null"},
    {"functions", "[]"},
    {"function_call", R"("none")"},
    {"add_generation_prompt", "true"},
    {"continue_final_message", "false"},
};
constexpr Fixed kFixedCompletionFields[] = {
    {"best_of", "1"},
    {"echo", "false"},
    {"suffix", R"("")"},
};

template <std::size_t kCount>
void check_fixed(const Json& request, const Fixed (&fields)[kCount]) {
  for (const auto& [field, only] : fields) {
    const Json* value = find(request, field);
    if (!value || *value == Json::parse(only)) continue;
    refuse(field,
           "not supported by this server yet: leave it out" +
               (std::string_view(only) == "null" ? "" : " or send " + std::string(only)) +
               " (got " + in_words(*value) + ")");
  }
}

SamplingRequest read_sampling(const Json& request) {
  SamplingRequest sampling;
  sampling.temperature = find_number(request, "temperature", 0, 2);
  sampling.top_p = find_number(request, "top_p", 0, 1);
  sampling.top_k = find_integer(request, "top_k", -1);
  if (sampling.top_k == -1) sampling.top_k = 0;  // both mean off
  if (const Json* seed = find(request, "seed")) {
    if (!seed->is_number_integer()) refuse("seed", "an integer", *seed);
    // -1 means "any", as in vLLM; other negative seeds are as good as any number.
    const bool any = is_int64(*seed) && seed->get<int64_t>() == -1;
    if (!any) sampling.seed = seed->get<uint64_t>();
  }
  return sampling;
}

std::vector<std::string> read_stop(const Json& request) {
  const std::string expected =
      "a text or a list of up to " + std::to_string(kMaxStops) + " texts, none of them empty";
  const Json* value = find(request, "stop");
  if (!value) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxStops) refuse("stop", expected, *value);
  std::vector<std::string> stops;
  for (const Json& stop : list) {
    if (!stop.is_string()) refuse("stop", expected, stop);
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty()) refuse("stop", expected, stop);
  }
  return stops;
}

void read_shared(const Json& request, GenerationRequest& result) {
  check_fixed(request, kFixedFields);
  if (const Json* model = find(request, "model")) {
    if (!model->is_string()) refuse("model", "a text", *model);
    result.model = model->get<std::string>();
  }
  result.sampling = read_sampling(request);
  const auto max_tokens = find_integer(request, "max_tokens", 1);
  const auto max_completion_tokens = find_integer(request, "max_completion_tokens", 1);
  result.max_tokens = max_completion_tokens ? max_completion_tokens : max_tokens;
  result.stop = read_stop(request);
  result.stream = find_flag(request, "stream");
  if (const Json* options = find_object(request, "stream_options")) {
    result.include_usage = find_flag(*options, "include_usage");
  }
  result.return_token_ids = find_flag(request, "return_token_ids");
}

/// The text of a message's content: templates get one text, whatever the client cut it into.
Json read_content(const Json& content, const std::string& where) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) refuse(where, "a text, a list of text parts or null", content);
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = where + "[" + std::to_string(i) + "]";
    if (!part.is_object()) refuse(at, "an object", part);
    const Json type = part.value("type", Json());
    if (type != "text") {
      refuse(at,
             "this model reads text only: expected a part of type \"text\", got " + in_words(type));
    }
    const Json* piece = find(part, "text");
    if (!piece || !piece->is_string()) refuse(at + ".text", "a text", piece ? *piece : Json());
    text += (i == 0 ? "" : "\n") + piece->get<std::string>();
  }
  return text;
}

std::string read_messages(const Json& request) {
  const Json* messages = find(request, "messages");
  if (!messages || !messages->is_array() || messages->empty()) {
    refuse("messages", "a list of at least one message", messages ? *messages : Json());
  }
  if (messages->size() > kMaxMessages) {
    refuse("messages",
           "at most " + std::to_string(kMaxMessages) + " messages",
           Json(messages->size()));
  }
  Json result = Json::array();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    Json message = (*messages)[i];
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (!message.is_object()) refuse(where, "an object", message);
    const Json* role = find(message, "role");
    if (!role || !role->is_string()) refuse(where + ".role", "a text", role ? *role : Json());
    message["content"] = read_content(message.value("content", Json()), where + ".content");
    result.push_back(std::move(message));
  }
  return dump_json(result);
}

/// The tools for the template: none when the client says that none may be called.
std::string read_tools(const Json& request) {
  const Json* choice = find(request, "tool_choice");
  if (choice && *choice != "auto" && *choice != "none") {
    refuse("tool_choice", "\"auto\" or \"none\" (a call cannot be forced here)", *choice);
  }
  const Json* tools = find(request, "tools");
  if (!tools) return {};
  if (!tools->is_array()) refuse("tools", "a list", *tools);
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) refuse("tools[" + std::to_string(i) + "]", "an object", tool);
  }
  return tools->empty() || (choice && *choice == "none") ? "" : dump_json(*tools);
}

std::vector<int64_t> read_ids(const Json& list) {
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!is_int64(id) || id < 0) refuse("prompt", "token ids of 0 or more", id);
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::variant<std::string, std::vector<int64_t>> read_prompt(const Json& request) {
  const Json* prompt = find(request, "prompt");
  const std::string expected = "a text, or a list of token ids";
  if (!prompt) refuse("prompt", expected, Json());
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    if (prompt->size() > 1) refuse("prompt", "one prompt in a request is all this server takes");
    prompt = &prompt->front();
  }
  if (prompt->is_string()) return prompt->get<std::string>();
  if (!prompt->is_array() || prompt->empty()) refuse("prompt", expected, *prompt);
  return read_ids(*prompt);
}

Json read_body(const std::string& body) {
  try {
    Json request = parse_json(body, kMaxJsonDepth);
    if (!request.is_object())
      refuse("", "the body: expected a JSON object, got " + in_words(request));
    return request;
  } catch (const std::invalid_argument& error) {
    refuse("", "the body is not valid JSON: " + std::string(error.what()));
  }
}

}  // namespace

ChatRequest parse_chat_request(const std::string& body) {
  const Json request = read_body(body);
  ChatRequest result;
  check_fixed(request, kFixedChatFields);
  read_shared(request, result);
  result.messages = read_messages(request);
  result.tools = read_tools(request);
  if (const Json* kwargs = find_object(request, "chat_template_kwargs")) {
    result.chat_template_kwargs = dump_json(*kwargs);
  }
  return result;
}

CompletionRequest parse_completion_request(const std::string& body) {
  const Json request = read_body(body);
  CompletionRequest result;
  check_fixed(request, kFixedCompletionFields);
  read_shared(request, result);
  result.prompt = read_prompt(request);
  return result;
}

}  // namespace meshnet
