// Messages, prompts, and bodies that are no request at all.

#include <gmock/gmock.h>

#include "openai_requests.h"

namespace meshnet {
namespace {

using ::testing::HasSubstr;

TEST(ChatRequest, RefusesBadNestedFields) {
  EXPECT_THAT(chat_refusal(R"("stream_options":{"include_usage":1})"),
              HasSubstr("include_usage | "));
  EXPECT_THAT(chat_refusal(R"("tools":[5])"), HasSubstr("tools[0] | "));
  EXPECT_THAT(chat_refusal(R"("temperature":1e999)"), HasSubstr("not valid JSON"));
  EXPECT_THAT(chat_refusal(R"("temperature":NaN)"), HasSubstr("not valid JSON"));
}

TEST(ChatRequest, RefusesBadMessages) {
  const auto text = [](const std::string& messages) {
    return refusal([&] { chat_messages(messages); });
  };
  for (const char* bad : {"[]", "\"x\"", "{}", "null", "5"}) {
    EXPECT_THAT(text(bad), HasSubstr("messages | ")) << bad;
  }
  EXPECT_THAT(refusal([] { parse_chat_request("{}"); }), HasSubstr("messages | "));
  EXPECT_THAT(text(R"(["x"])"), HasSubstr("messages[0] | "));
  EXPECT_THAT(text(R"([{"content":"x"}])"), HasSubstr("messages[0].role | "));
  EXPECT_THAT(text(R"([{"role":"user","content":"x"},{"role":5}])"),
              HasSubstr("messages[1].role | "));
  EXPECT_THAT(text(R"([{"role":"user","content":5}])"), HasSubstr("messages[0].content | "));
  EXPECT_THAT(text(R"([{"role":"user","content":{}}])"), HasSubstr("messages[0].content | "));
  EXPECT_THAT(text(R"([{"role":"user","content":["a"]}])"), HasSubstr("messages[0].content[0] | "));
  EXPECT_THAT(text(R"([{"role":"user","content":[{"type":"text"}]}])"),
              HasSubstr("messages[0].content[0].text | "));
  EXPECT_THAT(text(R"([{"role":"user","content":[{"text":"a"}]}])"),
              HasSubstr("messages[0].content[0] | "));
}

TEST(ChatRequest, SaysThatItTakesNoImages) {
  EXPECT_THAT(
      refusal([] {
        chat_messages(R"([{"role":"user","content":[{"type":"text","text":"a"},)"
                      R"({"type":"image_url","image_url":{"url":"x"}}]}])");
      }),
      ::testing::AllOf(
          HasSubstr("messages[0].content[1] | "), HasSubstr("text only"), HasSubstr("image_url")));
}

TEST(RequestBody, AnythingButAnObjectIsRefused) {
  const std::string deep(100'000, '[');
  const std::string deep_objects = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += R"({"a":)";
    return text;
  }();
  for (const std::string& body : {std::string("\"hi\""),
                                  std::string("[]"),
                                  std::string("null"),
                                  std::string("3"),
                                  std::string("{"),
                                  std::string(""),
                                  std::string("{}x"),
                                  std::string("{\"a\":\"\xff\"}"),
                                  std::string("{\"a\":\"\xed\xa0\x80\"}"),
                                  std::string("\xff"),
                                  std::string("{\"a\":\x00}", 7),
                                  deep,
                                  deep_objects,
                                  deep + std::string(100'000, ']')}) {
    EXPECT_THAT(refusal([&] { parse_chat_request(body); }), HasSubstr(" | the body")) << body[0];
    EXPECT_THAT(refusal([&] { parse_completion_request(body); }), HasSubstr(" | the body"));
  }
}

TEST(RequestBody, NestingAndKeysHaveLimits) {
  const auto nested = [](std::size_t depth) {
    return R"("x":)" + std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(chat_refusal(nested(63)), "accepted");
  EXPECT_THAT(chat_refusal(nested(64)), HasSubstr("nested deeper than 64 levels"));
  const auto keys = [](int count) {
    std::string object = R"("x":{"k":0)";
    for (int i = 1; i < count; ++i) object += ",\"k" + std::to_string(i) + "\":0";
    return object + "}";
  };
  EXPECT_EQ(chat_refusal(keys(512)), "accepted");
  EXPECT_THAT(chat_refusal(keys(513)), HasSubstr("more than 512 keys"));
  // The count is per object: siblings do not add up.
  std::string siblings = R"("x":[)";
  for (int i = 0; i < 1000; ++i) siblings += R"({"k":1},)";
  EXPECT_EQ(chat_refusal(siblings + "{}]"), "accepted");
}

TEST(RequestBody, MessagesStayShortAndCarryNoInput) {
  const std::string huge = R"({"a": ")" + std::string(1 << 20, 'x');
  EXPECT_LT(refusal([&] { parse_chat_request(huge); }).size(), 400u);
  EXPECT_LT(chat_refusal(R"("temperature":")" + std::string(1 << 20, 'x') + '"').size(), 400u);
}

TEST(CompletionRequest, TakesTextAndTokenIds) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(std::get<std::string>(completion(R"("prompt":"a b")").prompt), "a b");
  EXPECT_EQ(std::get<std::string>(completion(R"("prompt":["a b"])").prompt), "a b");
  EXPECT_EQ(std::get<Ids>(completion(R"("prompt":[1,2,3])").prompt), (Ids{1, 2, 3}));
  EXPECT_EQ(std::get<Ids>(completion(R"("prompt":[[1,2,3]])").prompt), (Ids{1, 2, 3}));
  EXPECT_EQ(completion(R"("prompt":"a","max_tokens":5)").max_tokens, 5);
}

TEST(CompletionRequest, RefusesOtherPrompts) {
  for (const char* bad : {"null",
                          "[]",
                          "5",
                          "{}",
                          "[[]]",
                          "[null]",
                          "[1,\"a\"]",
                          "[1,-1]",
                          "[1.5]",
                          "[[1,[2]]]",
                          "[1,18446744073709551615]",
                          "[{}]",
                          "true",
                          "[\"a\",\"b\"]",
                          "[[1],[2]]",
                          "[[[1]]]"}) {
    EXPECT_THAT(refusal([&] { completion("\"prompt\":" + std::string(bad)); }),
                HasSubstr("prompt | "))
        << bad;
  }
  EXPECT_THAT(refusal([] { completion(""); }), HasSubstr("prompt | "));
}

TEST(CompletionRequest, RefusesWhatItCannotDo) {
  for (const char* bad : {"\"best_of\":2",
                          "\"echo\":true",
                          "\"suffix\":\"x\"",
                          "\"logprobs\":0",
                          "\"logprobs\":5",
                          "\"n\":0"}) {
    EXPECT_THAT(refusal([&] { completion("\"prompt\":\"a\"," + std::string(bad)); }),
                HasSubstr("not supported by this server yet"))
        << bad;
  }
}

}  // namespace
}  // namespace meshnet
