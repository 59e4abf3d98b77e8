#include "runtime/sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

namespace meshnet {
namespace {

at::Tensor logits(const std::vector<float>& values) { return at::tensor(values); }

std::map<int64_t, int> draw(const at::Tensor& values, SamplingParams params, int count) {
  std::map<int64_t, int> seen;
  for (int position = 0; position < count; ++position) ++seen[sample(values, params, position)];
  return seen;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestOfEquals) {
  EXPECT_EQ(sample(logits({0.5F, 2.0F, -1.0F}), {}, 0), 1);
  EXPECT_EQ(sample(logits({0.5F, 2.0F, 2.0F, 2.0F}), {}, 0), 1);
  EXPECT_EQ(sample(at::zeros({50000}), {}, 7), 0);
}

TEST(SamplerTest, TinyTemperatureAndZeroTopPAreGreedy) {
  const auto values = logits({1.0F, 1.5F, 1.4F});
  for (int position = 0; position < 50; ++position) {
    EXPECT_EQ(sample(values, {1e-6, 0, 1.0, 1}, position), 1);
    EXPECT_EQ(sample(values, {1.0, 0, 0.0, 1}, position), 1);
    EXPECT_EQ(sample(values, {1.0, 0, 1e-9, 1}, position), 1);
    EXPECT_EQ(sample(values, {1.0, 1, 0.8, 1}, position), 1);
  }
}

TEST(SamplerTest, SameSeedAndPositionGiveTheSameToken) {
  const auto values = at::zeros({1000});
  const SamplingParams params{1.0, 0, 1.0, 42};
  EXPECT_EQ(sample(values, params, 5), sample(values, params, 5));
  int differs = 0;
  for (int position = 0; position < 20; ++position) {
    differs += sample(values, params, position) != sample(values, {1.0, 0, 1.0, 43}, position);
  }
  EXPECT_GT(differs, 15);
}

TEST(SamplerTest, DrawsInProportionToTheSoftmax) {
  const std::vector<float> values = {0.0F, 1.0F, 2.0F, -1.0F};
  const double temperature = 0.8;
  double total = 0.0;
  for (const float value : values) total += std::exp(value / temperature);
  constexpr int kDraws = 20000;
  const auto seen = draw(logits(values), {temperature, 0, 1.0, 9}, kDraws);
  double chi_square = 0.0;
  for (std::size_t id = 0; id < values.size(); ++id) {
    const double expected = kDraws * std::exp(values[id] / temperature) / total;
    const auto found = seen.find(static_cast<int64_t>(id));
    const double got = found == seen.end() ? 0.0 : found->second;
    chi_square += (got - expected) * (got - expected) / expected;
  }
  EXPECT_LT(chi_square, 16.3) << "3 degrees of freedom, 0.1 %";
}

TEST(SamplerTest, TopKAndTopPCutTheTail) {
  const auto values = logits({3.0F, 2.0F, 1.0F, 0.0F});  // probabilities 0.64, 0.24, 0.09, 0.03
  EXPECT_EQ(draw(values, {1.0, 2, 1.0, 1}, 2000).size(), 2U);
  EXPECT_EQ(draw(values, {1.0, 100, 1.0, 1}, 2000).size(), 4U)
      << "top_k beyond the vocabulary is off";
  EXPECT_EQ(draw(values, {1.0, 0, 0.7, 1}, 2000).size(), 2U)
      << "0.64 does not reach 0.7, 0.88 does";
  EXPECT_EQ(draw(values, {1.0, 0, 0.6, 1}, 2000).size(), 1U);
}

TEST(SamplerTest, AWideNucleusIsFoundWhole) {
  // All alike: half of the mass is the lower half of the ids, far more than a first guess looks at.
  SamplingParams params;
  params.temperature = 1.0;
  params.top_p = 0.5;
  int64_t largest = 0;
  for (int64_t position = 0; position < 300; ++position) {
    largest = std::max(largest, sample(at::zeros({20000}), params, position));
  }
  EXPECT_LT(largest, 10000);
  EXPECT_GT(largest, 9000);
}

TEST(SamplerTest, PositionsAreIndependent) {
  // A generator that depends on position weakly would repeat or alternate.
  const auto seen = draw(at::zeros({100}), {1.0, 0, 1.0, 3}, 10000);
  EXPECT_EQ(seen.size(), 100U);
  for (const auto& [id, count] : seen) EXPECT_NEAR(count, 100, 50) << id;
}

}  // namespace
}  // namespace meshnet
