#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "net/http_error.h"
#include "net/json_input.h"
#include "net/parse_number.h"
#include "net/wire.h"
#include "net/wire_headers.h"

namespace meshnet {
namespace {

using namespace wire;
using Json = nlohmann::ordered_json;
using Fields = http::fields;

[[noreturn]] void refuse(std::string_view field, const std::string& message) {
  HttpError error(400, kInvalidRequest, std::string(field) + ": " + message);
  error.param = field;
  throw error;
}

[[noreturn]] void refuse(std::string_view field, std::string_view expected, std::string_view got) {
  constexpr std::size_t kMaxQuoted = 80;
  const std::string dots = got.size() > kMaxQuoted ? "..." : "";
  refuse(field,
         "expected " + std::string(expected) + ", got '" + std::string(got.substr(0, kMaxQuoted)) +
             dots + "'");
}

std::optional<std::string_view> find(const Fields& fields, std::string_view name) {
  const auto [first, last] = fields.equal_range(name);
  if (first == last) return std::nullopt;
  if (std::next(first) != last) refuse(name, "expected one value, got several");
  return std::string_view(first->value());
}

std::optional<int64_t> find_count(const Fields& fields, std::string_view name, int64_t min = 0) {
  const auto text = find(fields, name);
  if (!text) return std::nullopt;
  const auto number = parse_number(*text, kMaxCount);
  if (!number || *number < min) {
    refuse(name, "an integer of " + std::to_string(min) + " or more", *text);
  }
  return number;
}

/// Ids and fingerprints: they end up in logs, JSON and other nodes' headers.
std::string find_text(const Fields& fields, std::string_view name) {
  const auto text = find(fields, name);
  if (!text) return {};
  const bool printable =
      std::all_of(text->begin(), text->end(), [](char c) { return c > ' ' && c <= '~'; });
  if (text->empty() || text->size() > kMaxText || !printable) {
    refuse(name,
           "1 to " + std::to_string(kMaxText) + " printable ASCII characters without spaces",
           *text);
  }
  return std::string(*text);
}

CacheMode read_mode(const Fields& fields) {
  const auto text = find(fields, kCache);
  if (!text) return CacheMode::kStateless;
  if (*text == "prefill") return CacheMode::kPrefill;
  if (*text == "decode") return CacheMode::kDecode;
  refuse(kCache, "prefill or decode", *text);
}

/// The parts between commas, without the spaces around them.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    std::string_view part = text.substr(start, end - start);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.push_back(part);
    start = end + 1;
  }
  return parts;
}

std::vector<std::string> read_route(const Fields& fields) {
  std::vector<std::string> names;
  const auto text = find(fields, kRoute);
  if (!text) return names;
  for (const std::string_view name : split(*text)) {
    if (!is_node_name(name)) {
      refuse(kRoute, "node names (letters, digits, '_', '.', '-') with commas between", *text);
    }
    if (names.size() == kMaxHops) {
      refuse(kRoute, "at most " + std::to_string(kMaxHops) + " names", *text);
    }
    names.emplace_back(name);
  }
  return names;
}

bool read_more(const Fields& fields, CacheMode mode) {
  const auto text = find(fields, kMore);
  if (!text) return false;
  if (*text != "0" && *text != "1") refuse(kMore, "0 or 1", *text);
  if (mode != CacheMode::kPrefill) {
    refuse(kMore, "expected only with X-Meshnet-Cache: prefill, got it without");
  }
  return *text == "1";
}

/// Takes the JSON that stands before the tensor off the body.
std::string take_meta(const Fields& fields, std::string& body) {
  const auto length = find_count(fields, kMetaLength);
  if (!length || *length == 0) return {};
  if (static_cast<uint64_t>(*length) > body.size()) {
    refuse(kMetaLength,
           "at most the " + std::to_string(body.size()) + " bytes of the body",
           std::to_string(*length));
  }
  std::string meta = body.substr(0, static_cast<std::size_t>(*length));
  try {
    if (!parse_json(meta, kMaxPeerJsonDepth).is_object()) {
      refuse(kMetaLength, "expected a JSON object at the start of the body, got another value");
    }
  } catch (const std::invalid_argument& error) {
    refuse(kMetaLength,
           "expected a JSON object at the start of the body, got: " + std::string(error.what()));
  }
  body.erase(0, meta.size());
  return meta;
}

Dtype read_dtype(const Fields& fields, Dtype fallback) {
  const auto text = find(fields, kDtype);
  if (!text) return fallback;
  const auto dtype = parse_dtype(*text);
  if (!dtype) refuse(kDtype, "bfloat16, float16 or float32", *text);
  return *dtype;
}

/// Tokens as the shape header says, or as many as the bytes make.
int64_t read_tokens(const Fields& fields,
                    std::size_t bytes,
                    std::size_t bytes_per_token,
                    int64_t hidden_size) {
  const auto text = find(fields, kShape);
  if (!text) {
    if (bytes == 0 || bytes % bytes_per_token != 0) {
      refuse("body",
             "expected a multiple of " + std::to_string(bytes_per_token) +
                 " bytes (one token), got " + std::to_string(bytes));
    }
    return static_cast<int64_t>(bytes / bytes_per_token);
  }
  const std::string hidden = std::to_string(hidden_size);
  const auto sizes = split(*text);
  const bool fits = sizes.size() == 3 && sizes[0] == "1" && sizes[2] == hidden;
  const auto tokens = fits ? parse_number(sizes[1], kMaxCount) : std::nullopt;
  if (!tokens || *tokens < 1) {
    refuse(kShape, "1,tokens," + hidden + " with one token or more", *text);
  }
  return *tokens;
}

HiddenStates read_hidden(const Fields& fields, std::string bytes, const WireDefaults& defaults) {
  HiddenStates hidden;
  hidden.dtype = read_dtype(fields, defaults.dtype);
  hidden.hidden_size = defaults.hidden_size;
  const std::size_t bytes_per_token =
      static_cast<std::size_t>(defaults.hidden_size) * size_of(hidden.dtype);
  hidden.tokens = read_tokens(fields, bytes.size(), bytes_per_token, defaults.hidden_size);
  if (hidden.tokens > defaults.max_tokens) {
    refuse(find(fields, kShape) ? kShape : "body",
           "expected at most " + std::to_string(defaults.max_tokens) + " tokens, got " +
               std::to_string(hidden.tokens));
  }
  const std::size_t expected = static_cast<std::size_t>(hidden.tokens) * bytes_per_token;
  if (bytes.size() != expected) {
    refuse("body",
           "expected " + std::to_string(expected) + " bytes for " + std::to_string(hidden.tokens) +
               " tokens of " + std::string(to_string(hidden.dtype)) + ", got " +
               std::to_string(bytes.size()));
  }
  hidden.bytes = std::move(bytes);
  return hidden;
}

/// What the headers must say together.
void check_step(const ForwardRequest& step, const Fields& fields) {
  if (step.mode == CacheMode::kStateless) {
    if (step.past_len > 0) {
      refuse(kPastLen,
             "expected none or 0 without X-Meshnet-Cache, got " + std::to_string(step.past_len));
    }
    return;
  }
  if (step.session.empty())
    refuse(kSession, "expected a session id with X-Meshnet-Cache, got none");
  if (step.mode == CacheMode::kDecode && !find(fields, kPastLen)) {
    refuse(kPastLen, "expected a number with X-Meshnet-Cache: decode, got none");
  }
}

TokenReply read_token(const std::string& body) {
  const Json json = parse_json(body, kMaxPeerJsonDepth);
  if (!json.is_object()) throw std::invalid_argument("expected a JSON object");
  const auto text = json.find("text");
  if (text == json.end() || !text->is_string()) {
    throw std::invalid_argument("text: expected a string");
  }
  TokenReply reply{text->get<std::string>(), std::nullopt};
  const auto id = json.find("token_id");
  if (id == json.end() || id->is_null()) return reply;
  if (!id->is_number_unsigned() || id->get<uint64_t>() > kMaxCount) {
    throw std::invalid_argument("token_id: expected an integer of 0 or more, or null");
  }
  reply.token_id = id->get<int64_t>();
  return reply;
}

std::string read_server_timing(const Fields& fields) {
  std::string text;
  const auto [first, last] = fields.equal_range(kServerTiming);
  for (auto field = first; field != last; ++field) {
    text += (text.empty() ? "" : ", ") + std::string(field->value());
  }
  return text;
}

}  // namespace

ForwardRequest parse_forward(HttpRequest request, const WireDefaults& defaults) {
  const Fields& fields = request;
  ForwardRequest step;
  step.session = find_text(fields, kSession);
  step.mode = read_mode(fields);
  step.past_len = find_count(fields, kPastLen).value_or(0);
  step.hop_index = find_count(fields, kHopIndex).value_or(0);
  step.start_layer = find_count(fields, kStartLayer);
  step.protocol = find_count(fields, kProtocol).value_or(0);
  step.route = read_route(fields);
  step.epoch = find_count(fields, kEpoch, 1).value_or(1);
  step.model_fingerprint = find_text(fields, kModel);
  step.recipe_fingerprint = find_text(fields, kRecipe);
  step.more = read_more(fields, step.mode);
  step.trace = find_text(fields, kTrace);
  check_step(step, fields);
  step.meta = take_meta(fields, request.body());
  step.hidden = read_hidden(fields, std::move(request.body()), defaults);
  if (step.mode == CacheMode::kDecode && step.hidden.tokens != 1) {
    refuse(find(fields, kShape) ? kShape : "body",
           "expected one token in a decode, got " + std::to_string(step.hidden.tokens));
  }
  return step;
}

ForwardReply parse_forward_reply(HttpResponse response, const WireDefaults& defaults) {
  const Fields& fields = response;
  ForwardReply reply;
  try {
    reply.protocol = find_count(fields, kProtocol).value_or(0);
    reply.server_timing = read_server_timing(fields);
    if (std::string_view(fields[http::field::content_type]).starts_with(kJsonType)) {
      reply.result = read_token(response.body());
    } else {
      reply.result = read_hidden(fields, std::move(response.body()), defaults);
    }
  } catch (const HttpError& error) {
    throw HttpError(502, kBadAnswer, "malformed answer of a node: " + std::string(error.what()));
  } catch (const std::invalid_argument& error) {
    throw HttpError(502, kBadAnswer, "malformed answer of a node: " + std::string(error.what()));
  }
  return reply;
}

}  // namespace meshnet
