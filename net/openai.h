#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "net/http_error.h"

namespace meshnet {

/// Sampling as a client may ask for it; what it leaves out comes from the model's
/// generation_config.json.
struct SamplingRequest {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;  ///< 0 = off (-1 is read as 0)
  std::optional<uint64_t> seed;
};

/// The part that /v1/chat/completions and /v1/completions share.
struct GenerationRequest {
  std::string model;  ///< empty = the served one
  SamplingRequest sampling;
  std::optional<int64_t> max_tokens;  ///< max_completion_tokens wins over max_tokens
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;  ///< stream_options.include_usage
  bool return_token_ids = false;
};

struct ChatRequest : GenerationRequest {
  std::string messages;  ///< JSON array as the chat template wants it; text parts joined, missing
                         ///< content = null
  std::string tools;     ///< JSON array, or empty
  std::string chat_template_kwargs;  ///< JSON object, or empty
};

struct CompletionRequest : GenerationRequest {
  std::variant<std::string, std::vector<int64_t>> prompt;  ///< text, or token ids
};

/// Request bodies → values. Throw HttpError 400 with `param` for anything that is no such request;
/// never for unknown fields.
ChatRequest parse_chat_request(const std::string& body);
CompletionRequest parse_completion_request(const std::string& body);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

/// What stays the same over all chunks of one answer.
struct AnswerHead {
  std::string id;  ///< "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  ///< seconds since the epoch
  bool chat = true;     ///< chat.completion(.chunk) or text_completion
};

/// One choice, whole (an answer without streaming) or the part that one chunk carries.
struct ChoicePart {
  std::string text;
  std::string finish_reason;  ///< "stop", "length", or empty while it goes on
  std::optional<std::vector<int64_t>> prompt_token_ids;  ///< set when return_token_ids asks for it
  std::optional<std::vector<int64_t>> token_ids;
};

/// Bodies, as JSON text.
std::string format_answer(const AnswerHead& head, const ChoicePart& choice, const Usage& usage);
/// One streamed chunk; `first` adds the role to a chat delta.
std::string format_chunk(const AnswerHead& head, const ChoicePart& part, bool first);
/// The chunk with empty choices that include_usage asks for.
std::string format_usage_chunk(const AnswerHead& head, const Usage& usage);
std::string format_models(const std::string& id, int64_t created, int64_t max_model_len);
/// {"error": {"message", "type", "param", "code"}}: the shape of the OpenAI API.
std::string format_openai_error(const HttpError& error);
/// {"error", "message", "reason"?, "node", "hop_index", "layers"}: the shape between nodes.
std::string format_node_error(const HttpError& error);
/// A node's JSON error answer → HttpError, so that it climbs the route unchanged. Any 409 is
/// a miss. Of other bodies the status counts where it says that the step may be served yet (502,
/// 503, 504); else 502.
HttpError parse_node_error(unsigned status, const std::string& body);

}  // namespace meshnet
