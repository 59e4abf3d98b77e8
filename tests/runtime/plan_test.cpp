#include "runtime/plan.h"

#include <gmock/gmock.h>

#include <numeric>

namespace meshnet {
namespace {

using Ranges = std::vector<LayerRange>;

TEST(Balance, SharesEqualLayersEvenly) {
  EXPECT_EQ(balance({5, 5, 5, 5, 5, 5}, {1, 1, 1}), (Ranges{{0, 2}, {2, 4}, {4, 6}}));
  EXPECT_EQ(balance({5}, {1}), (Ranges{{0, 1}}));
}

TEST(Balance, LeavesRoomForEmbeddingAndHead) {
  // The outer layers bring the embedding and lm_head.
  EXPECT_EQ(balance({40, 10, 10, 10, 10, 40}, {1, 1, 1}), (Ranges{{0, 1}, {1, 5}, {5, 6}}));
}

TEST(Balance, GivesTheLargerNodeMore) {
  EXPECT_EQ(balance({1, 1, 1, 1, 1, 1, 1, 1}, {3, 1}), (Ranges{{0, 6}, {6, 8}}));
  EXPECT_EQ(balance({1, 1, 1, 1, 1, 1, 1, 1}, {1, 3}), (Ranges{{0, 2}, {2, 8}}));
}

/// The smallest largest cost / share of any way to cut, by trying all.
double best_by_trial(const std::vector<int64_t>& costs,
                     const std::vector<int64_t>& shares,
                     std::size_t first,
                     std::size_t node) {
  if (node + 1 == shares.size()) {
    const auto sum = std::accumulate(
        costs.begin() + static_cast<std::ptrdiff_t>(first), costs.end(), int64_t{0});
    return static_cast<double>(sum) / static_cast<double>(shares[node]);
  }
  double best = 1e300;
  double own = 0;
  for (std::size_t end = first + 1; end + (shares.size() - node - 1) <= costs.size(); ++end) {
    own += static_cast<double>(costs[end - 1]);
    best = std::min(best,
                    std::max(own / static_cast<double>(shares[node]),
                             best_by_trial(costs, shares, end, node + 1)));
  }
  return best;
}

TEST(Balance, NoOtherCutIsBetter) {
  const std::vector<int64_t> costs{9, 2, 7, 1, 8, 3, 3, 14, 2, 6};
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{1, 1}, {1, 2, 3}, {3, 1, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}) {
    const Ranges ranges = balance(costs, shares);
    ASSERT_EQ(ranges.size(), shares.size());
    double largest = 0;
    int64_t next = 0;
    for (std::size_t node = 0; node < ranges.size(); ++node) {
      EXPECT_EQ(ranges[node].first, next);
      EXPECT_GE(ranges[node].size(), 1);
      next = ranges[node].last;
      const auto sum = std::accumulate(
          costs.begin() + ranges[node].first, costs.begin() + ranges[node].last, int64_t{0});
      largest = std::max(largest, static_cast<double>(sum) / static_cast<double>(shares[node]));
    }
    EXPECT_EQ(next, static_cast<int64_t>(costs.size()));
    EXPECT_DOUBLE_EQ(largest, best_by_trial(costs, shares, 0, 0));
  }
}

TEST(Balance, NamesTooManyNodes) { EXPECT_THROW(balance({1, 1}, {1, 1, 1}), std::runtime_error); }

}  // namespace
}  // namespace meshnet
