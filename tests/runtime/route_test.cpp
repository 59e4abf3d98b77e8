#include "runtime/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace meshnet {
namespace {

using Hops = std::vector<RouteHop>;

TEST(RouteTest, TwoHalves) {
  const std::vector<RouteCandidate> nodes = {{"head", {0, 15}}, {"tail", {15, 30}}};
  const auto route = choose_route(nodes, "head", 30);
  EXPECT_TRUE(route.complete());
  EXPECT_EQ(route.hops, (Hops{{"head", 0}, {"tail", 15}}));
}

TEST(RouteTest, OverlapStartsAfterThePreviousNode) {
  const std::vector<RouteCandidate> nodes = {
      {"head", {0, 10}}, {"wide", {5, 25}}, {"tail", {20, 30}}};
  EXPECT_EQ(choose_route(nodes, "head", 30).hops, (Hops{{"head", 0}, {"wide", 10}, {"tail", 25}}));
}

TEST(RouteTest, TakesTheNodeThatReachesFarthestAndTheFirstOnATie) {
  const std::vector<RouteCandidate> nodes = {
      {"head", {0, 10}}, {"short", {10, 12}}, {"far", {8, 30}}, {"twin", {10, 30}}};
  EXPECT_EQ(choose_route(nodes, "head", 30).hops, (Hops{{"head", 0}, {"far", 10}}));
}

TEST(RouteTest, OneNodeMayHoldAll) {
  const std::vector<RouteCandidate> nodes = {{"solo", {0, 4}}, {"other", {2, 4}}};
  EXPECT_EQ(choose_route(nodes, "solo", 4).hops, (Hops{{"solo", 0}}));
}

TEST(RouteTest, IncompleteSaysHowFarItReaches) {
  const std::vector<RouteCandidate> nodes = {{"head", {0, 10}}, {"tail", {12, 30}}};
  const auto route = choose_route(nodes, "head", 30);
  EXPECT_FALSE(route.complete());
  EXPECT_EQ(route.reached, 10);
  EXPECT_EQ(first_gap(nodes, 30), (LayerRange{10, 12}));
}

TEST(RouteTest, AHeadWithoutLayerZeroHasNoRoute) {
  const std::vector<RouteCandidate> nodes = {{"a", {1, 4}}, {"b", {0, 4}}};
  EXPECT_FALSE(choose_route(nodes, "a", 4).complete());
  EXPECT_FALSE(choose_route(nodes, "missing", 4).complete());
}

TEST(RouteTest, GapAtTheEndsAndNone) {
  EXPECT_EQ(first_gap(std::vector<RouteCandidate>{{"a", {1, 4}}}, 4), (LayerRange{0, 1}));
  EXPECT_EQ(first_gap(std::vector<RouteCandidate>{{"a", {0, 3}}}, 4), (LayerRange{3, 4}));
  EXPECT_EQ(first_gap(std::vector<RouteCandidate>{{"a", {0, 3}}, {"b", {2, 4}}}, 4).size(), 0);
}

}  // namespace
}  // namespace meshnet
