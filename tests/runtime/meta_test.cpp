#include "runtime/meta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/http_error.h"

namespace meshnet {
namespace {

TEST(MetaTest, RoundTripKeepsEveryBitOfTheSeed) {
  const SamplingParams params{0.7, 20, 0.95, 0xffff'ffff'ffff'fffeULL};
  const auto back = parse_meta(format_meta(params));
  EXPECT_EQ(back.temperature, params.temperature);
  EXPECT_EQ(back.top_k, params.top_k);
  EXPECT_EQ(back.top_p, params.top_p);
  EXPECT_EQ(back.seed, params.seed);
}

TEST(MetaTest, NoMetaIsGreedyAndUnknownFieldsAreLeftOut) {
  EXPECT_EQ(parse_meta("").temperature, 0.0);
  EXPECT_EQ(parse_meta(R"({"later": 1})").temperature, 0.0);
}

TEST(MetaTest, RefusesWrongValuesByName) {
  for (const auto* bad : {R"({"sampling": {"temperature": -1}})",
                          R"({"sampling": {"temperature": "hot"}})",
                          R"({"sampling": {"top_p": 1.5}})",
                          R"({"sampling": {"top_k": 1.5}})",
                          R"({"sampling": {"seed": -1}})",
                          R"({"sampling": 3})"}) {
    try {
      parse_meta(bad);
      FAIL() << bad;
    } catch (const HttpError& error) {
      EXPECT_EQ(error.status, 400U);
      EXPECT_THAT(error.what(), testing::HasSubstr("meta.sampling")) << bad;
    }
  }
}

}  // namespace
}  // namespace meshnet
