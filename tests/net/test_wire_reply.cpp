#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "net/http_error.h"
#include "net/wire.h"
#include "wire_values.h"

namespace meshnet {
namespace {

using ::testing::HasSubstr;

TEST(WireReply, CarriesTokens) {
  for (const auto& id : {std::optional<int64_t>(7), std::optional<int64_t>()}) {
    const ForwardReply sent{TokenReply{"né", id}, "tail;dur=1.5"};
    const HttpResponse response = format_forward_reply(sent);
    EXPECT_EQ(response["X-Meshnet-Protocol"], "1");
    EXPECT_EQ(response[http::field::content_type], "application/json");
    const ForwardReply got = parse_forward_reply(response, kDefaults);
    EXPECT_EQ(std::get<TokenReply>(got.result).text, "né");
    EXPECT_EQ(std::get<TokenReply>(got.result).token_id, id);
    EXPECT_EQ(got.protocol, 1);
    EXPECT_EQ(got.server_timing, "tail;dur=1.5");
  }
}

TEST(WireReply, TokenJsonHasTheSpecifiedShape) {
  const auto body = [](const TokenReply& token) {
    return nlohmann::json::parse(format_forward_reply({token, ""}).body());
  };
  EXPECT_EQ(body({"a", 5}), nlohmann::json::parse(R"({"text":"a","token_id":5})"));
  EXPECT_EQ(body({"", {}}), nlohmann::json::parse(R"({"text":"","token_id":null})"));
  // A cut character must not take the answer down.
  EXPECT_EQ(body({"\xf0\x9f", 5})["token_id"], 5);
}

TEST(WireReply, CarriesTensors) {
  const ForwardReply sent{hidden_states(3, Dtype::kFloat16), "m;dur=2"};
  const HttpResponse response = format_forward_reply(sent);
  EXPECT_EQ(response["X-Meshnet-Dtype"], "float16");
  EXPECT_EQ(response["X-Meshnet-Shape"], "1,3,4");
  EXPECT_EQ(response["X-Meshnet-Protocol"], "1");
  EXPECT_EQ(response["Server-Timing"], "m;dur=2");
  EXPECT_EQ(response[http::field::content_type], "application/octet-stream");
  const ForwardReply got = parse_forward_reply(response, kDefaults);
  expect_same(std::get<HiddenStates>(got.result), std::get<HiddenStates>(sent.result));
}

TEST(WireReply, ReadsOldNodes) {
  HttpResponse tensor(http::status::ok, 11);
  tensor.body() = zeros(2);
  ForwardReply reply = parse_forward_reply(tensor, kDefaults);
  EXPECT_EQ(reply.protocol, 0);
  EXPECT_EQ(std::get<HiddenStates>(reply.result).tokens, 2);

  HttpResponse token(http::status::ok, 11);
  token.set(http::field::content_type, "application/json; charset=utf-8");
  token.body() = R"({"text":" Paris","logprobs":[1]})";
  reply = parse_forward_reply(token, kDefaults);
  EXPECT_EQ(std::get<TokenReply>(reply.result).text, " Paris");
  EXPECT_EQ(std::get<TokenReply>(reply.result).token_id, std::nullopt);
}

TEST(WireReply, MalformedAnswersAre502) {
  const auto status = [](const HttpResponse& response) {
    try {
      parse_forward_reply(response, kDefaults);
      return 200u;
    } catch (const HttpError& error) {
      EXPECT_THAT(error.what(), HasSubstr("malformed answer"));
      return error.status;
    }
  };
  HttpResponse token(http::status::ok, 11);
  token.set(http::field::content_type, "application/json");
  for (const char* body : {"",
                           "{",
                           "[]",
                           "{}",
                           R"({"text":1})",
                           R"({"text":"a","token_id":"7"})",
                           R"({"text":"a","token_id":-1})",
                           R"({"text":"a","token_id":1.5})",
                           R"({"text":"a","token_id":18446744073709551615})",
                           "{\"text\":\"\xff\"}"}) {
    token.body() = body;
    EXPECT_EQ(status(token), 502u) << body;
  }
  HttpResponse tensor = format_forward_reply({hidden_states(2), ""});
  EXPECT_EQ(status(tensor), 200u);
  tensor.body().pop_back();
  EXPECT_EQ(status(tensor), 502u);
  tensor.set("X-Meshnet-Shape", "1,2,8");
  EXPECT_EQ(status(tensor), 502u);
}

}  // namespace
}  // namespace meshnet
