#include "runtime/server_timing.h"

#include <gtest/gtest.h>

namespace meshnet {
namespace {

TEST(ServerTiming, ReadsWhatItWrites) {
  const auto timings = parse_server_timing(
      format_server_timing({{"queue", "tail", 0.041}, {"compute", "a.b-c_9", 12345.678}}));
  ASSERT_EQ(timings.size(), 2U);
  EXPECT_EQ(timings[0].part, "queue");
  EXPECT_EQ(timings[0].node, "tail");
  EXPECT_DOUBLE_EQ(timings[0].milliseconds, 0.041);
  EXPECT_EQ(timings[1].part, "compute");
  EXPECT_EQ(timings[1].node, "a.b-c_9");
  EXPECT_DOUBLE_EQ(timings[1].milliseconds, 12345.678);
}

TEST(ServerTiming, LeavesOutWhatOthersWrite) {
  const auto timings = parse_server_timing(
      "cdn-cache;desc=HIT, edge;dur=1, wire;desc=\"x,y\";dur=1, wire;desc=\"a b\";dur=1.0,,"
      "queue;desc=\"n\";dur=nan, queue;desc=\"n\";dur=-1, queue;desc=\"n\";dur=1e5, "
      "queue;desc=\"n\";dur=1.0x, queue;desc=\"n\";dur=,wire;desc=\"ok\";dur=2.500");
  ASSERT_EQ(timings.size(), 1U);
  EXPECT_EQ(timings[0].node, "ok");
  EXPECT_DOUBLE_EQ(timings[0].milliseconds, 2.5);
  EXPECT_TRUE(parse_server_timing("").empty());
  EXPECT_TRUE(parse_server_timing(std::string(100000, ',')).empty());
}

}  // namespace
}  // namespace meshnet
