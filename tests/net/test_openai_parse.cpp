#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "net/openai.h"

namespace meshnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

const std::string kMessages = R"("messages":[{"role":"user","content":"hi"}])";

ChatRequest chat(const std::string& fields) {
  return parse_chat_request("{" + kMessages + (fields.empty() ? "" : "," + fields) + "}");
}

ChatRequest chat_messages(const std::string& messages) {
  return parse_chat_request(R"({"messages":)" + messages + "}");
}

CompletionRequest completion(const std::string& fields) {
  return parse_completion_request("{" + fields + "}");
}

/// The refusal's param and message as "param | message", or "accepted".
template <class Parse>
std::string refusal(Parse parse) {
  try {
    parse();
    return "accepted";
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status, 400u);
    EXPECT_EQ(error.error, kInvalidRequest);
    return error.param + " | " + error.what();
  }
}

std::string chat_refusal(const std::string& fields) {
  return refusal([&] { chat(fields); });
}

TEST(ChatRequest, LeavesOutWhatTheClientLeftOut) {
  const ChatRequest request = chat("");
  EXPECT_EQ(request.model, "");
  EXPECT_EQ(request.sampling.temperature, std::nullopt);
  EXPECT_EQ(request.sampling.top_p, std::nullopt);
  EXPECT_EQ(request.sampling.top_k, std::nullopt);
  EXPECT_EQ(request.sampling.seed, std::nullopt);
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_THAT(request.stop, IsEmpty());
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.include_usage);
  EXPECT_FALSE(request.return_token_ids);
  EXPECT_EQ(request.messages, R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(request.tools, "");
  EXPECT_EQ(request.chat_template_kwargs, "");
}

TEST(ChatRequest, ReadsEveryField) {
  const ChatRequest request = chat(
      R"("model":"m","temperature":0.5,"top_p":1,"top_k":40,"seed":7,"max_tokens":3,"stop":["a","b"],)"
      R"("stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,)"
      R"("tools":[{"type":"function","function":{"name":"f","a":1}}],)"
      R"("chat_template_kwargs":{"enable_thinking":false}, "user":"x", "metadata":{"z":1})");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 1.0);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.max_tokens, 3);
  EXPECT_THAT(request.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.return_token_ids);
  EXPECT_EQ(request.tools, R"([{"type":"function","function":{"name":"f","a":1}}])");
  EXPECT_EQ(request.chat_template_kwargs, R"({"enable_thinking":false})");
}

TEST(ChatRequest, NullIsAbsent) {
  const ChatRequest request = chat(
      R"("model":null,"temperature":null,"top_p":null,"top_k":null,"seed":null,"max_tokens":null,)"
      R"("max_completion_tokens":null,"stop":null,"stream":null,"stream_options":null,"tools":null,)"
      R"("chat_template_kwargs":null,"return_token_ids":null,"n":null,"logprobs":null,)"
      R"("response_format":null,"logit_bias":null,"tool_choice":null,"audio":null)");
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.sampling.seed, std::nullopt);
}

TEST(ChatRequest, MaxCompletionTokensWins) {
  EXPECT_EQ(chat(R"("max_completion_tokens":3)").max_tokens, 3);
  EXPECT_EQ(chat(R"("max_completion_tokens":3,"max_tokens":9)").max_tokens, 3);
  EXPECT_EQ(chat(R"("max_tokens":9,"max_completion_tokens":null)").max_tokens, 9);
}

TEST(ChatRequest, StopTakesOneTextToo) {
  EXPECT_THAT(chat(R"("stop":"beta gamma")").stop, ElementsAre("beta gamma"));
  EXPECT_THAT(chat(R"("stop":[])").stop, IsEmpty());
}

TEST(ChatRequest, TopKOffAndSeeds) {
  EXPECT_EQ(chat(R"("top_k":-1)").sampling.top_k, 0);
  EXPECT_EQ(chat(R"("top_k":0)").sampling.top_k, 0);
  EXPECT_EQ(chat(R"("top_p":0)").sampling.top_p, 0.0);
  EXPECT_EQ(chat(R"("seed":-1)").sampling.seed, std::nullopt);
  EXPECT_EQ(chat(R"("seed":18446744073709551615)").sampling.seed, UINT64_MAX);
  EXPECT_NE(chat(R"("seed":-2)").sampling.seed, chat(R"("seed":-3)").sampling.seed);
}

TEST(ChatRequest, JoinsTextParts) {
  const ChatRequest request = chat_messages(
      R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"user","content":[{"type":"text","text":"c"}]}])");
  EXPECT_EQ(request.messages,
            R"([{"role":"system","content":"a\nb"},{"role":"user","content":"c"}])");
}

TEST(ChatRequest, KeepsToolCallsAndNullContent) {
  const std::string call =
      R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}])";
  const std::string tail = R"(,{"role":"tool","tool_call_id":"1","name":"f","content":"4"}])";
  const std::string expected = R"([{"role":"assistant","content":null,)" + call + "}" + tail;
  EXPECT_EQ(chat_messages(expected).messages, expected);
  const Json missing =
      Json::parse(chat_messages(R"([{"role":"assistant",)" + call + "}" + tail).messages);
  EXPECT_TRUE(missing[0].at("content").is_null());
  EXPECT_EQ(missing[0].at("tool_calls").size(), 1u);
}

TEST(ChatRequest, ToolChoiceNoneHidesTheTools) {
  const std::string tools = R"("tools":[{"type":"function"}],"tool_choice":)";
  EXPECT_EQ(chat(tools + R"("none")").tools, "");
  EXPECT_NE(chat(tools + R"("auto")").tools, "");
  EXPECT_THAT(chat_refusal(tools + R"("required")"), HasSubstr("tool_choice | "));
  EXPECT_THAT(chat_refusal(tools + R"({"type":"function"})"), HasSubstr("tool_choice | "));
}

TEST(ChatRequest, HarmlessValuesOfUnsupportedFieldsPass) {
  chat(R"("n":1,"presence_penalty":0.0,"frequency_penalty":0,"logit_bias":{},"logprobs":false,)"
       R"("top_logprobs":0,"response_format":{"type":"text"},"modalities":["text"],"min_p":0,)"
       R"("repetition_penalty":1.0,"ignore_eos":false,"stop_token_ids":[],"functions":[])");
  completion(R"("prompt":"a","n":1,"best_of":1,"echo":false,"suffix":"","logprobs":null)");
}

struct BadField {
  const char* param;
  const char* value;
};
std::ostream& operator<<(std::ostream& out, const BadField& field) {
  return out << field.param << ' ' << field.value;
}

class ChatRequestRefuses : public ::testing::TestWithParam<BadField> {};

TEST_P(ChatRequestRefuses, NamingTheField) {
  const auto& [param, value] = GetParam();
  EXPECT_THAT(chat_refusal('"' + std::string(param) + "\":" + value),
              ::testing::StartsWith(std::string(param) + " | " + param + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    Fields,
    ChatRequestRefuses,
    ::testing::Values(
        BadField{"model", "5"},
        BadField{"model", "[]"},
        BadField{"temperature", "-0.1"},
        BadField{"temperature", "2.1"},
        BadField{"temperature", "\"1\""},
        BadField{"temperature", "true"},
        BadField{"top_p", "-0.1"},
        BadField{"top_p", "1.5"},
        BadField{"top_p", "[]"},
        BadField{"top_k", "-2"},
        BadField{"top_k", "1.5"},
        BadField{"top_k", "\"5\""},
        BadField{"top_k", "18446744073709551615"},
        BadField{"seed", "1.5"},
        BadField{"seed", "\"1\""},
        BadField{"seed", "1e30"},
        BadField{"max_tokens", "0"},
        BadField{"max_tokens", "-1"},
        BadField{"max_tokens", "1.5"},
        BadField{"max_tokens", "\"3\""},
        BadField{"max_tokens", "true"},
        BadField{"max_completion_tokens", "0"},
        BadField{"max_completion_tokens", "-5"},
        BadField{"max_completion_tokens", "99999999999999999999"},
        BadField{"stop", "\"\""},
        BadField{"stop", "[\"a\",\"\"]"},
        BadField{"stop", "5"},
        BadField{"stop", "[5]"},
        BadField{"stop", "{}"},
        BadField{"stop", "[null]"},
        BadField{"stop",
                 R"(["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])"},
        BadField{"stream", "1"},
        BadField{"stream", "\"true\""},
        BadField{"stream_options", "true"},
        BadField{"stream_options", "[]"},
        BadField{"return_token_ids", "1"},
        BadField{"tools", "{}"},
        BadField{"tools", "\"x\""},
        BadField{"chat_template_kwargs", "[]"},
        BadField{"chat_template_kwargs", "\"x\""},
        BadField{"n", "0"},
        BadField{"n", "2"},
        BadField{"n", "-1"},
        BadField{"n", "\"1\""},
        BadField{"n", "true"},
        BadField{"logprobs", "true"},
        BadField{"top_logprobs", "5"},
        BadField{"presence_penalty", "0.5"},
        BadField{"frequency_penalty", "-1"},
        BadField{"repetition_penalty", "1.1"},
        BadField{"logit_bias", "{\"5\":1}"},
        BadField{"min_p", "0.1"},
        BadField{"min_tokens", "5"},
        BadField{"ignore_eos", "true"},
        BadField{"stop_token_ids", "[2]"},
        BadField{"response_format", "{\"type\":\"json_object\"}"},
        BadField{"response_format", "5"},
        BadField{"modalities", "[\"audio\"]"},
        BadField{"audio", "{}"},
        BadField{"functions", "[{}]"},
        BadField{"guided_json", "{}"},
        BadField{"add_generation_prompt", "false"}));

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
