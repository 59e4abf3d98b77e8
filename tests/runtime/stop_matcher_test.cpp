#include "runtime/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshnet {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
};

Outcome feed(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher(std::move(stops));
  Outcome outcome;
  for (const auto& piece : pieces) outcome.text += matcher.push(piece);
  outcome.stopped = matcher.stopped();
  if (!outcome.stopped) outcome.text += matcher.finish();
  return outcome;
}

TEST(StopMatcherTest, FindsAStopStringSpreadOverPieces) {
  const auto outcome = feed({"beta gamma"}, {"alpha ", "be", "ta", " gam", "ma", " delta"});
  EXPECT_TRUE(outcome.stopped);
  EXPECT_EQ(outcome.text, "alpha ");
}

TEST(StopMatcherTest, AHalfMatchAtTheEndStillArrives) {
  const auto outcome = feed({"beta gamma"}, {"alpha ", "bet"});
  EXPECT_FALSE(outcome.stopped);
  EXPECT_EQ(outcome.text, "alpha bet");
}

TEST(StopMatcherTest, HoldsBackNoMoreThanTheHalfMatch) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.push("some E"), "some ");
  EXPECT_EQ(matcher.push("N"), "");
  EXPECT_EQ(matcher.push("emy"), "ENemy");
}

TEST(StopMatcherTest, AFalseStartMayHideATrueOne) {
  EXPECT_EQ(feed({"aab"}, {"a", "a", "a", "b", "x"}).text, "a");
}

TEST(StopMatcherTest, TheEarliestOfSeveralWins) {
  EXPECT_EQ(feed({"two", "one"}, {"zero one two"}).text, "zero ");
}

TEST(StopMatcherTest, WithoutStopStringsTextPassesAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.push("abc"), "abc");
  EXPECT_FALSE(matcher.stopped());
}

}  // namespace
}  // namespace meshnet
