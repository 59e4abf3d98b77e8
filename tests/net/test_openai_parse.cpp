// Fields of a chat request: what is read from them, and which values are refused.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "openai_requests.h"

namespace meshnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

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

}  // namespace
}  // namespace meshnet
