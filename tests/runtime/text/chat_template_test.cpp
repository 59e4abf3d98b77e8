#include "runtime/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>

#include "net/http_error.h"
#include "tests/runtime/text/support.h"

namespace meshnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kHello = R"([{"role": "user", "content": "Hello"}])";

/// A model directory with this template as chat_template.jinja.
class Model {
 public:
  explicit Model(std::string_view source) {
    text_test::write_file(dir_.path() / "chat_template.jinja", source);
  }

  std::string render(const std::string& messages = kHello, const std::string& kwargs = "") const {
    return load().render(messages, "", kwargs);
  }
  ChatTemplate load() const { return ChatTemplate::load(dir_.path()).value(); }
  const std::filesystem::path& path() const { return dir_.path(); }

 private:
  text_test::TempDir dir_;
};

/// The 400 that rendering ends in; its message is what the client reads.
std::string refusal(const ChatTemplate& chat_template, const std::string& messages = kHello) {
  try {
    return "rendered: " + chat_template.render(messages, "", "");
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status, 400U);
    EXPECT_EQ(error.error, kInvalidRequest);
    return error.what();
  }
}

// Every feature of templates.py
TEST(ChatTemplateParity, RendersAsTransformersDoes) {
  const nlohmann::json cases = text_test::read_json(text_test::golden_dir() / "templates.json");
  ASSERT_GT(cases.size(), 30U);
  for (const nlohmann::json& golden : cases) {
    const std::string name = golden.at("name");
    SCOPED_TRACE(name);
    const auto chat_template = ChatTemplate::load(text_test::golden_dir() / "templates" / name);
    ASSERT_TRUE(chat_template);
    const auto render = [&] {
      return chat_template->render(golden.at("messages").get<std::string>(),
                                   golden.at("tools").get<std::string>(),
                                   golden.at("kwargs").get<std::string>());
    };
    if (golden.contains("prompt")) {
      EXPECT_EQ(render(), golden["prompt"].get<std::string>());
    } else if (golden.contains("raised")) {
      EXPECT_THAT(render, ThrowsMessage<HttpError>(golden["raised"].get<std::string>()));
    } else {
      EXPECT_THAT(render, ThrowsMessage<HttpError>(HasSubstr("chat template, line ")));
    }
  }
}

TEST(ChatTemplate, JinjaFileWinsOverTheConfig) {
  const Model model("from the file");
  text_test::write_file(model.path() / "tokenizer_config.json",
                        R"({"chat_template": "from the config"})");
  EXPECT_EQ(model.render(), "from the file");
}

TEST(ChatTemplate, ConfigAloneServes) {
  const text_test::TempDir dir;
  text_test::write_file(dir.path() / "tokenizer_config.json",
                        R"({"chat_template": "from the config"})");
  EXPECT_EQ(ChatTemplate::load(dir.path()).value().render(kHello, "", ""), "from the config");
}

TEST(ChatTemplate, ModelWithoutOneHasNone) {
  const text_test::TempDir dir;
  EXPECT_FALSE(ChatTemplate::load(dir.path()));
  for (const char* config : {"{}", R"({"chat_template": null})"}) {
    text_test::write_file(dir.path() / "tokenizer_config.json", config);
    EXPECT_FALSE(ChatTemplate::load(dir.path())) << config;
  }
}

TEST(ChatTemplate, SpecialTokensComeFromTheOlderMapToo) {
  const Model model("{{ bos_token }}{{ eos_token }}{{ image_token }}{{ add_bos_token }}");
  text_test::write_file(model.path() / "special_tokens_map.json",
                        R"({"bos_token": {"content": "<map>", "lstrip": false}})");
  const std::string common = R"("eos_token": {"content": "</s>"}, "image_token": "<img>",
      "bos_token": "<config>", "add_bos_token": true)";
  text_test::write_file(model.path() / "tokenizer_config.json", "{" + common + "}");
  EXPECT_EQ(model.render(), "<map></s><img>");
  text_test::write_file(model.path() / "tokenizer_config.json",
                        "{" + common + R"(, "added_tokens_decoder": {}})");
  EXPECT_EQ(model.render(), "<config></s><img>");
}

TEST(ChatTemplate, FilesThatCannotServeAreNamed) {
  const text_test::TempDir dir;
  const auto config = dir.path() / "tokenizer_config.json";
  for (const char* content : {"[",
                              "[]",
                              R"({"chat_template": 5})",
                              R"({"chat_template": [{}]})",
                              R"({"chat_template": [{"name": "rag", "template": "x"}]})",
                              R"({"chat_template": "{% if %}"})"}) {
    text_test::write_file(config, content);
    EXPECT_THAT([&] { ChatTemplate::load(dir.path()); },
                ThrowsMessage<std::runtime_error>(HasSubstr(config.string())))
        << content;
  }
}

TEST(ChatTemplate, SyntaxErrorNamesFileAndLine) {
  for (const char* source : {"line 1\n{% if x %}", "a\n{% include 'b' %}", "\n{{ 1 + }}"}) {
    const Model model(source);
    EXPECT_THAT(
        [&] { model.load(); },
        ThrowsMessage<std::runtime_error>(AllOf(
            HasSubstr((model.path() / "chat_template.jinja").string()), HasSubstr("line 2: "))))
        << source;
  }
}

TEST(ChatTemplate, ItsOwnRefusalIsTheMessageAndItGoesOn) {
  const Model model(
      "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
      "{% endif %}ok");
  const ChatTemplate chat_template = model.load();
  EXPECT_EQ(refusal(chat_template, R"([{"role": "system", "content": "x"}])"),
            "System role not supported");
  EXPECT_EQ(chat_template.render(kHello, "", ""), "ok");
}

TEST(ChatTemplate, WhatItCannotRenderIsRefusedWithTheLine) {
  const Model model("\n\n{{ messages[0].content | no_such_filter }}");
  EXPECT_THAT(refusal(model.load()),
              AllOf(HasSubstr("chat template, line 3: "), HasSubstr("no_such_filter")));
}

TEST(ChatTemplate, NullContentIsAMissingField) {
  const Model model(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.content is defined }}"
      "{{ m.tool_calls[0].function.name if m.tool_calls else '' }};{% endfor %}");
  const auto conversation = [](const std::string& content) {
    return R"([{"role": "user", "content": "?"}, {"role": "assistant", )" + content +
           R"("tool_calls": [{"function": {"name": "f"}}]}, {"role": "tool", "content": "1"}])";
  };
  const std::string expected = "user:?True;assistant:Falsef;tool:1True;";
  EXPECT_EQ(model.render(conversation(R"("content": null, )")), expected);
  EXPECT_EQ(model.render(conversation("")), expected);
}

TEST(ChatTemplate, KwargsAreVariablesAndUnknownOnesHarmless) {
  const Model model("{{ '<think>\\n\\n</think>' if enable_thinking is false else 'think' }}");
  EXPECT_EQ(model.render(kHello, R"({"enable_thinking": false})"), "<think>\n\n</think>");
  EXPECT_EQ(model.render(kHello, R"({"enable_thinking": true, "other": [{}]})"), "think");
  EXPECT_EQ(model.render(kHello, "{}"), "think");
}

TEST(ChatTemplate, KwargsCannotReplaceTheConversation) {
  const Model model("{{ messages[0].content }}{{ tools is none }}");
  EXPECT_EQ(model.render(kHello, R"({"messages": [], "tools": [1]})"), "HelloTrue");
}

TEST(ChatTemplate, ArgumentsThatAreNoConversationAreRefused) {
  const ChatTemplate chat_template = Model("{{ messages }}").load();
  for (const char* messages : {"", "[", "[]", "{}", "5", R"(["text"])", "[null]", "[\"\xFF\"]"}) {
    EXPECT_THAT([&] { chat_template.render(messages, "", ""); },
                ThrowsMessage<HttpError>(HasSubstr("chat template, ")))
        << messages;
  }
  EXPECT_THROW(chat_template.render(kHello, "[", ""), HttpError);
  EXPECT_THROW(chat_template.render(kHello, "", "[]"), HttpError);
}

TEST(ChatTemplate, KnowsTheLocalTime) {
  const ChatTemplate chat_template = Model("{{ strftime_now('%Y-%m-%d %H:%M %b %A') }}").load();
  const auto now = [] {
    const std::time_t seconds = std::time(nullptr);
    std::tm local{};
    localtime_r(&seconds, &local);
    char text[64];
    return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M %b %A", &local));
  };
  const std::string before = now();
  const std::string rendered = chat_template.render(kHello, "", "");
  EXPECT_THAT(rendered, ::testing::AnyOf(before, now()));
}

// A checkpoint's template may come from anyone; none may hang or end the process.
TEST(ChatTemplate, RunawayTemplatesAreRefused) {
  for (const char* source : {
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
           "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
           "{% set n = namespace(x='xxxxxxxx') %}{% for i in range(99999) %}"
           "{% set n.x = n.x ~ n.x %}{% endfor %}",
           "{{ 'a' * 100000000000 }}",
           "{{ range(99999) | join('x' * 100000) }}",
           "{{ '{:>1000000000000}'.format(1) }}",
           "{{ '%1000000000d' | format(1) }}",
           "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}"
           "{% endfor %}{{ n.x }}",
           "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}"
           "{% endfor %}{{ n.x | tojson }}",
       }) {
    EXPECT_THAT(refusal(Model(source).load()), HasSubstr("chat template, line 1: ")) << source;
  }
}

TEST(ChatTemplate, DeeplyNestedSourcesDoNotEndTheProcess) {
  const std::string brackets = "{{ " + std::string(50'000, '[') + std::string(50'000, ']') + " }}";
  EXPECT_THROW(Model(brackets).load(), std::runtime_error);
  EXPECT_EQ(Model("{{ " + std::string(100'000, '-') + "1 }}").render(), "1");
  EXPECT_THAT([] { Model(std::string(2 << 20, 'x')).load(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("longer than")));
}

TEST(ChatTemplate, LongConversationsAreRenderedWhole) {
  // Looks at every message for every message, as some do to find the last user turn.
  const Model model(
      "{% for m in messages %}{% set ns = namespace(last=0) %}{% for o in messages %}"
      "{% if o.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
      "{{ ns.last }},{% endfor %}");
  std::string messages = "[";
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    messages += std::string(i == 0 ? "" : ",") + R"({"role": "user", "content": "x"})";
    expected += "999,";
  }
  EXPECT_EQ(model.render(messages + "]"), expected);
}

}  // namespace
}  // namespace meshnet
