#include "runtime/meta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/http_error.h"
#include "runtime/server_timing.h"

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

TEST(ServerTimingTest, RoundTrip) {
  const auto timings = parse_server_timing(
      format_server_timing({{"queue", "tail", 0.041}, {"compute", "tail-2.b", 12.3}}));
  ASSERT_EQ(timings.size(), 2U);
  EXPECT_EQ(timings[0].part, "queue");
  EXPECT_EQ(timings[0].node, "tail");
  EXPECT_DOUBLE_EQ(timings[0].milliseconds, 0.041);
  EXPECT_EQ(timings[1].node, "tail-2.b");
  EXPECT_DOUBLE_EQ(timings[1].milliseconds, 12.3);
}

TEST(ServerTimingTest, LeavesOutWhatOthersAdd) {
  EXPECT_TRUE(parse_server_timing("").empty());
  EXPECT_EQ(
      parse_server_timing("cdn;dur=1, cache;desc=\"a b\";dur=2.0, queue;desc=\"n\";dur=1.5").size(),
      1U);
}

}  // namespace
}  // namespace meshnet
