#include "runtime/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "runtime/chat_template.h"
#include "tests/runtime/text/support.h"

namespace meshnet {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Ids = std::vector<int64_t>;

Tokenizer tiny(const char* name) {
  return Tokenizer(text_test::golden_dir() / "tokenizers" / name);
}

TEST(Tokenizer, MissingFileIsNamed) {
  const text_test::TempDir dir;
  EXPECT_THAT([&] { Tokenizer tokenizer(dir.path()); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr((dir.path() / "tokenizer.json").string() + ": missing")));
}

TEST(Tokenizer, BrokenFileIsNamedWithTheReason) {
  const text_test::TempDir dir;
  const auto path = dir.path() / "tokenizer.json";
  for (const char* content : {"", "{\"version\": ", "{}", "\xFF"}) {
    text_test::write_file(path, content);
    EXPECT_THAT([&] { Tokenizer tokenizer(dir.path()); },
                ThrowsMessage<std::runtime_error>(HasSubstr(path.string() + ": ")))
        << content;
  }
}

TEST(Tokenizer, IdsOutsideTheVocabularyAddNothing) {
  const Tokenizer tokenizer = tiny("byte_level");
  Ids ids = tokenizer.encode("Hello", false);
  const std::string plain = tokenizer.decode(ids);
  for (const int64_t odd : {int64_t{-1},
                            int64_t{1'000'000},
                            int64_t{1} << 32,
                            std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max()}) {
    ids.push_back(odd);
  }
  EXPECT_EQ(tokenizer.decode(ids), plain);
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, LooksUpTokens) {
  const Tokenizer tokenizer = tiny("byte_level");
  EXPECT_EQ(tokenizer.token_to_id("<|endoftext|>"), 0);
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_to_id("\xFF"), std::nullopt);
}

TEST(Tokenizer, TextThatIsNotUtf8IsAnError) {
  const Tokenizer tokenizer = tiny("byte_level");
  EXPECT_THAT([&] { tokenizer.encode("ab\xFF", false); },
              ThrowsMessage<std::runtime_error>(HasSubstr("not UTF-8")));
}

TEST(Tokenizer, RawPromptBeginsWithOneBos) {
  const Tokenizer tokenizer = tiny("byte_fallback");
  const int64_t bos = tokenizer.token_to_id("<s>").value();
  const Ids ids = tokenizer.encode("Hello", true);
  EXPECT_EQ(ids.front(), bos);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), bos), 1);
}

TEST(Tokenizer, ChatPromptKeepsTheOneBosOfItsTemplate) {
  const Tokenizer tokenizer = tiny("byte_fallback");
  const auto chat_template =
      ChatTemplate::load(text_test::golden_dir() / "tokenizers" / "byte_fallback").value();
  const std::string prompt =
      chat_template.render(R"([{"role": "user", "content": "Hello"}])", "", "");
  const Ids ids = tokenizer.encode(prompt, false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.token_to_id("<s>").value()), 1);
}

TEST(Tokenizer, IsUsedFromManyThreads) {
  const Tokenizer tokenizer = tiny("byte_fallback");
  const std::string text = "naïve 日本 words and more words";
  const Ids expected = tokenizer.encode(text, true);
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        count += tokenizer.encode(text, true) == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(equal, std::vector<int>(4, 200));
}

TEST(Detokenizer, CutOffCharacterIsFlushedAtTheEnd) {
  for (const char* name : {"byte_level", "byte_fallback"}) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = tiny(name);
    Ids ids = tokenizer.encode("a 🦄", false);
    ids.pop_back();
    Detokenizer detokenizer(tokenizer);
    std::string text;
    for (const int64_t id : ids) {
      text += detokenizer.push(id);
    }
    EXPECT_EQ(text, "a ");
    const std::string rest = detokenizer.finish();
    EXPECT_EQ(text + rest, tokenizer.decode(ids));
    EXPECT_TRUE(rest.starts_with("\uFFFD"));
    EXPECT_EQ(detokenizer.finish(), "");
  }
}

TEST(Detokenizer, CharactersOfSeveralTokensComeWhole) {
  const Tokenizer tokenizer = tiny("byte_level");
  Detokenizer detokenizer(tokenizer);
  const Ids ids = tokenizer.encode("🦄", false);
  ASSERT_GT(ids.size(), 1U);
  std::vector<std::string> pieces;
  for (const int64_t id : ids) {
    if (std::string piece = detokenizer.push(id); !piece.empty()) {
      pieces.push_back(piece);
    }
  }
  EXPECT_EQ(pieces, std::vector<std::string>{"🦄"});
}

TEST(Detokenizer, SpecialAndUnknownIdsBetweenBytesDoNotBreakACharacter) {
  const Tokenizer tokenizer = tiny("byte_fallback");
  Ids ids = {tokenizer.token_to_id("<0xE2>").value(),
             tokenizer.token_to_id("<s>").value(),
             tokenizer.token_to_id("<0x97>").value(),
             -5,
             tokenizer.token_to_id("<0xB5>").value()};
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int64_t id : ids) {
    text += detokenizer.push(id);
  }
  EXPECT_EQ(text + detokenizer.finish(), "◵");
}

TEST(Detokenizer, LongRunsOfBrokenBytesKeepFlowing) {
  const Tokenizer tokenizer = tiny("byte_level");
  const Ids ids(3000, tokenizer.token_to_id("ÿ").value());  // the byte 0xFF
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int64_t id : ids) {
    text += detokenizer.push(id);
  }
  EXPECT_EQ(text.size(), 2999 * std::string("\uFFFD").size());
  EXPECT_EQ(text + detokenizer.finish(), tokenizer.decode(ids));
}

TEST(Detokenizer, SingleSpacesOfAMetaspaceTokenizerAreAllKept) {
  const Tokenizer tokenizer = tiny("byte_fallback");
  const Ids ids(500, tokenizer.token_to_id("▁").value());
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int64_t id : ids) {
    text += detokenizer.push(id);
  }
  EXPECT_EQ(text, std::string(499, ' '));  // the first one marks the start
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, DecoderThatRewritesItsTextNeverSplitsACharacter) {
  const text_test::TempDir dir;
  text_test::write_file(dir.path() / "tokenizer.json", R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "é"}]},
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}})");
  const Tokenizer tokenizer(dir.path());
  Detokenizer detokenizer(tokenizer);
  for (const int64_t id : {0, 1, 0, 0, 1, 1, 0}) {
    EXPECT_TRUE(text_test::is_utf8(detokenizer.push(id)));
  }
  EXPECT_TRUE(text_test::is_utf8(detokenizer.finish()));
}

}  // namespace
}  // namespace meshnet
