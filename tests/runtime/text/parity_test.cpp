// Every tokenizer that make_golden.py knows, against what transformers makes of the same input.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/chat_template.h"
#include "runtime/tokenizer.h"
#include "tests/runtime/text/support.h"

namespace meshnet {
namespace {

using Ids = std::vector<int64_t>;

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(text_test::golden_dir() / "tokenizers")) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

/// Runs `check` on every tokenizer with its golden values.
template <typename Check>
void for_each_tokenizer(Check check) {
  const std::vector<std::string> names = tokenizer_names();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const nlohmann::json golden =
        text_test::read_json(text_test::golden_dir() / "tokenizers" / name / "golden.json");
    const std::filesystem::path model_dir = golden.at("model_dir").get<std::string>();
    check(Tokenizer(model_dir), model_dir, golden);
  }
}

/// Pushes one id after the other; every piece must be whole characters.
std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int64_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(text_test::is_utf8(piece));
    text += piece;
  }
  return text + detokenizer.finish();
}

TEST(TokenizerParity, EncodesHardStringsAsTransformersDoes) {
  for_each_tokenizer([](const Tokenizer& tokenizer, const auto&, const nlohmann::json& golden) {
    const std::vector<std::string> texts = golden.at("texts");
    ASSERT_GE(texts.size(), 2000U);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      ASSERT_EQ(tokenizer.encode(texts[i], false), golden["ids"][i].get<Ids>()) << texts[i];
      ASSERT_EQ(tokenizer.encode(texts[i], true), golden["ids_with_special"][i].get<Ids>())
          << texts[i];
    }
  });
}

TEST(TokenizerParity, DecodesAsTransformersDoes) {
  for_each_tokenizer([](const Tokenizer& tokenizer, const auto&, const nlohmann::json& golden) {
    for (std::size_t i = 0; i < golden["ids"].size(); ++i) {
      ASSERT_EQ(tokenizer.decode(golden["ids"][i].get<Ids>()),
                golden["decoded"][i].get<std::string>())
          << i;
    }
    for (std::size_t i = 0; i < golden["runs"].size(); ++i) {
      ASSERT_EQ(tokenizer.decode(golden["runs"][i].get<Ids>()),
                golden["runs_decoded"][i].get<std::string>())
          << i;
    }
  });
}

TEST(DetokenizerParity, PiecesOfAnyRunJoinToTheOneShotDecode) {
  for_each_tokenizer([](const Tokenizer& tokenizer, const auto&, const nlohmann::json& golden) {
    for (std::size_t i = 0; i < golden["ids"].size(); ++i) {
      ASSERT_EQ(streamed(tokenizer, golden["ids"][i].get<Ids>()),
                golden["decoded"][i].get<std::string>())
          << i;
    }
    for (std::size_t i = 0; i < golden["runs"].size(); ++i) {
      ASSERT_EQ(streamed(tokenizer, golden["runs"][i].get<Ids>()),
                golden["runs_decoded"][i].get<std::string>())
          << i;
    }
  });
}

TEST(DetokenizerParity, HoldsNothingBackThatIsSettled) {
  for_each_tokenizer([](const Tokenizer& tokenizer, const auto&, const nlohmann::json& golden) {
    std::size_t settled = 0;
    for (std::size_t i = 0; i < 300; ++i) {
      const Ids ids = golden["ids"][i].get<Ids>();
      Detokenizer detokenizer(tokenizer);
      std::string sent;
      for (std::size_t count = 1; count <= std::min<std::size_t>(ids.size(), 100); ++count) {
        sent += detokenizer.push(ids[count - 1]);
        const std::string decoded = tokenizer.decode(std::span(ids).first(count));
        if (tokenizer.token_kind(ids[count - 1]) == Tokenizer::TokenKind::kWhole &&
            !decoded.ends_with("\uFFFD")) {
          ASSERT_EQ(sent, decoded);
          ++settled;
        }
      }
    }
    EXPECT_GT(settled, 1000U);
  });
}

TEST(ChatParity, PromptIdsAreThoseOfApplyChatTemplate) {
  for_each_tokenizer([](const Tokenizer& tokenizer,
                        const std::filesystem::path& model_dir,
                        const nlohmann::json& golden) {
    const auto chat_template = ChatTemplate::load(model_dir);
    ASSERT_TRUE(chat_template);
    for (const nlohmann::json& chat : golden.at("chats")) {
      const std::string prompt = chat_template->render(chat["messages"].get<std::string>(), "", "");
      EXPECT_EQ(tokenizer.encode(prompt, false), chat["ids"].get<Ids>()) << prompt;
    }
  });
}

}  // namespace
}  // namespace meshnet
