#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "net/json_input.h"
#include "net/wire.h"
#include "net/wire_headers.h"

namespace meshnet {
namespace {

using namespace wire;
using Json = nlohmann::ordered_json;
using Fields = http::fields;

void set(Fields& fields, std::string_view name, std::string_view value) {
  if (!value.empty()) fields.set(name, value);
}

std::string shape_of(const HiddenStates& hidden) {
  return "1," + std::to_string(hidden.tokens) + "," + std::to_string(hidden.hidden_size);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

/// The headers that a node of protocol 0 knows.
void write_fixed_headers(const ForwardRequest& step, Fields& fields) {
  set(fields, kSession, step.session);
  if (step.mode != CacheMode::kStateless) {
    set(fields, kCache, to_string(step.mode));
    set(fields, kPastLen, std::to_string(step.past_len));
  }
  set(fields, kHopIndex, std::to_string(step.hop_index));
  if (step.start_layer) set(fields, kStartLayer, std::to_string(*step.start_layer));
}

void write_other_headers(const ForwardRequest& step, Fields& fields) {
  set(fields, kProtocol, std::to_string(kOwnProtocol));
  set(fields, kRoute, joined(step.route));
  set(fields, kEpoch, std::to_string(step.epoch));
  set(fields, kDtype, to_string(step.hidden.dtype));
  set(fields, kShape, shape_of(step.hidden));
  set(fields, kModel, step.model_fingerprint);
  set(fields, kRecipe, step.recipe_fingerprint);
  if (step.more) set(fields, kMore, "1");
  if (!step.meta.empty()) set(fields, kMetaLength, std::to_string(step.meta.size()));
  set(fields, kTrace, step.trace);
}

}  // namespace

HttpRequest format_forward(const ForwardRequest& step, int64_t peer_protocol) {
  if (peer_protocol == 0 && step.more) {
    throw std::logic_error(
        "a node of protocol 0 takes a prefill whole: it would sample a token "
        "after every chunk");
  }
  HttpRequest request(http::verb::post, "/forward", 11);
  request.set(http::field::content_type, kTensorType);
  write_fixed_headers(step, request);
  if (peer_protocol == 0) {
    request.body() = step.hidden.bytes;
    return request;
  }
  write_other_headers(step, request);
  request.body() = step.meta + step.hidden.bytes;
  return request;
}

HttpResponse format_forward_reply(const ForwardReply& reply) {
  HttpResponse response(http::status::ok, 11);
  response.set(kProtocol, std::to_string(kOwnProtocol));
  response.set(kServerTiming, reply.server_timing);
  if (const auto* token = std::get_if<TokenReply>(&reply.result)) {
    response.set(http::field::content_type, kJsonType);
    Json json{{"text", token->text}, {"token_id", nullptr}};
    if (token->token_id) json["token_id"] = *token->token_id;
    response.body() = dump_json(json);
    return response;
  }
  const auto& hidden = std::get<HiddenStates>(reply.result);
  response.set(http::field::content_type, kTensorType);
  response.set(kDtype, to_string(hidden.dtype));
  response.set(kShape, shape_of(hidden));
  response.body() = hidden.bytes;
  return response;
}

}  // namespace meshnet
