#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "net/openai.h"
#include "net/sse.h"

namespace meshnet {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const AnswerHead kChat{"chatcmpl-1", "smollm2", 1700000000, true};
const AnswerHead kText{"cmpl-1", "smollm2", 1700000000, false};

TEST(OpenAiFormat, ChatAnswer) {
  EXPECT_EQ(Json::parse(format_answer(kChat, {"Paris.", "stop", {}, {}}, {10, 3})), Json::parse(R"({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris."},
                 "logprobs": null, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}})"));
}

TEST(OpenAiFormat, TextAnswerWithTokenIds) {
  const ChoicePart choice{"b", "length", {{1, 2}}, {{3}}};
  EXPECT_EQ(Json::parse(format_answer(kText, choice, {2, 1})), Json::parse(R"({
    "id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "text": "b", "logprobs": null, "finish_reason": "length",
                 "prompt_token_ids": [1, 2], "token_ids": [3]}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}})"));
}

Json choice_of(const std::string& chunk) {
  const Json json = Json::parse(chunk);
  EXPECT_EQ(json.at("choices").size(), 1u);
  EXPECT_FALSE(json.contains("usage"));
  return json.at("choices").at(0);
}

TEST(OpenAiFormat, ChatChunks) {
  EXPECT_EQ(Json::parse(format_chunk(kChat, {"Pa", "", {}, {}}, true)), Json::parse(R"({
    "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Pa"},
                 "logprobs": null, "finish_reason": null}]})"));
  EXPECT_EQ(choice_of(format_chunk(kChat, {"", "", {}, {}}, true))["delta"],
            Json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(choice_of(format_chunk(kChat, {"ris", "", {}, {}}, false))["delta"],
            Json::parse(R"({"content": "ris"})"));
  // A token that completes no character still has its chunk when ids are asked for.
  const Json quiet = choice_of(format_chunk(kChat, {"", "", {}, {{9}}}, false));
  EXPECT_EQ(quiet["delta"], Json::parse(R"({"content": ""})"));
  EXPECT_EQ(quiet["token_ids"], Json::parse("[9]"));
  const Json last = choice_of(format_chunk(kChat, {"", "stop", {}, {}}, false));
  EXPECT_EQ(last["delta"], Json::object());
  EXPECT_EQ(last["finish_reason"], "stop");
}

TEST(OpenAiFormat, TextChunk) {
  EXPECT_EQ(Json::parse(format_chunk(kText, {"b", "", {}, {}}, true)), Json::parse(R"({
    "id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "smollm2",
    "choices": [{"index": 0, "text": "b", "logprobs": null, "finish_reason": null}]})"));
}

TEST(OpenAiFormat, UsageChunkHasNoChoices) {
  const Json chunk = Json::parse(format_usage_chunk(kChat, {10, 3}));
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["choices"], Json::array());
  EXPECT_EQ(chunk["usage"]["total_tokens"], 13);
}

TEST(OpenAiFormat, BadUtf8DoesNotThrow) {
  EXPECT_THAT(format_chunk(kChat, {"a\xff", "", {}, {}}, false), HasSubstr("a\xef\xbf\xbd"));
  EXPECT_THAT(format_node_error(HttpError(400, kInvalidRequest, "\xc3")),
              HasSubstr("\xef\xbf\xbd"));
}

TEST(OpenAiFormat, Models) {
  EXPECT_EQ(Json::parse(format_models("smollm2", 17, 8192)), Json::parse(R"({"object": "list",
    "data": [{"id": "smollm2", "object": "model", "created": 17, "owned_by": "meshnet",
              "max_model_len": 8192}]})"));
}

TEST(OpenAiFormat, ErrorTypeFollowsTheStatus) {
  const auto type = [](unsigned status) {
    return Json::parse(format_openai_error(HttpError(status, "c", "m")))["error"]["type"];
  };
  for (const unsigned status : {400u, 404u, 405u, 408u, 413u, 431u}) {
    EXPECT_EQ(type(status), "invalid_request_error") << status;
  }
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(429), "rate_limit_error");
  for (const unsigned status : {500u, 502u, 503u, 504u, 507u}) {
    EXPECT_EQ(type(status), "server_error") << status;
  }
}

TEST(OpenAiFormat, ErrorShape) {
  HttpError error(400, kInvalidRequest, "top_p: wrong");
  EXPECT_EQ(Json::parse(format_openai_error(error)), Json::parse(R"({"error": {
    "message": "top_p: wrong", "type": "invalid_request_error", "param": null,
    "code": "invalid_request"}})"));
  error.param = "top_p";
  EXPECT_EQ(Json::parse(format_openai_error(error))["error"]["param"], "top_p");
}

TEST(NodeError, TravelsUnchanged) {
  HttpError sent(409, "cache_miss", "no such session");
  sent.reason = "evicted_ttl";
  sent.node = "tail";
  sent.hop_index = 2;
  sent.layers = "15-29";
  EXPECT_EQ(Json::parse(format_node_error(sent)), Json::parse(R"({"error": "cache_miss",
    "message": "no such session", "reason": "evicted_ttl", "node": "tail", "hop_index": 2,
    "layers": "15-29"})"));
  const HttpError got = parse_node_error(409, format_node_error(sent));
  EXPECT_EQ(got.status, 409u);
  EXPECT_EQ(got.error, sent.error);
  EXPECT_STREQ(got.what(), sent.what());
  EXPECT_EQ(got.reason, sent.reason);
  EXPECT_EQ(got.node, sent.node);
  EXPECT_EQ(got.hop_index, sent.hop_index);
  EXPECT_EQ(got.layers, sent.layers);
}

TEST(NodeError, OtherBodiesBecome502) {
  for (const char* body : {"", "<html>", "[]", "{}", R"({"error":{"message":"x"}})", "\xff"}) {
    const HttpError error = parse_node_error(500, body);
    EXPECT_EQ(error.status, 502u) << body;
    EXPECT_EQ(error.error, kBadAnswer);
    EXPECT_THAT(error.what(), HasSubstr("500"));
  }
  EXPECT_EQ(parse_node_error(302, R"({"error":"x","message":"y"})").status, 502u);
  EXPECT_FALSE(parse_node_error(400, R"({"error":"x","hop_index":"2"})").hop_index);
}

TEST(NodeError, OfOtherBodiesTheStatusCountsWhereAStepMayBeServedYet) {
  for (const char* body : {"",
                           "<html>",
                           R"({"detail": "not held"})",
                           R"({"error": "unknown session"})",
                           R"({"error": "cache_miss"})"}) {
    const HttpError miss = parse_node_error(409, body);
    EXPECT_EQ(miss.status, 409u);
    EXPECT_EQ(miss.error, "cache_miss");
    EXPECT_EQ(miss.reason, "unknown_session");
    for (const unsigned status : {502u, 503u, 504u}) {
      const HttpError error = parse_node_error(status, body);
      EXPECT_EQ(error.status, status);
      EXPECT_NE(error.error, kBadAnswer);
    }
  }
}

TEST(Sse, LinesAsTheApiHasThem) {
  EXPECT_EQ(sse_event("{\"a\":1}"), "data: {\"a\":1}\n\n");
  EXPECT_EQ(kSseDone, "data: [DONE]\n\n");
}

}  // namespace
}  // namespace meshnet
