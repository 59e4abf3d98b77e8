// Mixture of experts: against a token by token reference, against transformers, and each way
// through it against its twin.

#include "models/layers/moe.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "models/kernels/bf16_cpu.h"
#include "models/kernels/moe_cpu.h"
#include "support.h"

namespace meshnet {
namespace {

constexpr double kOneRounding = 1.0 / 256;  // of bfloat16

constexpr MoeConfig kPlain{.hidden_size = 64,
                           .num_experts = 8,
                           .num_experts_per_tok = 2,
                           .moe_intermediate_size = 40,
                           .shared_expert_intermediate_size = 0,
                           .norm_topk_prob = false};
constexpr MoeConfig kShared{.hidden_size = 96,
                            .num_experts = 11,
                            .num_experts_per_tok = 3,
                            .moe_intermediate_size = 64,
                            .shared_expert_intermediate_size = 32,
                            .norm_topk_prob = true};

SparseMoe random_moe(const MoeConfig& config, at::ScalarType dtype = at::kFloat) {
  const auto random = [&](at::IntArrayRef shape) { return (at::randn(shape) * 0.3).to(dtype); };
  const int64_t hidden = config.hidden_size;
  const int64_t size = config.moe_intermediate_size;
  const int64_t shared_size = config.shared_expert_intermediate_size;
  SparseMoe moe{
      config.num_experts,
      config.num_experts_per_tok,
      config.norm_topk_prob,
      {random({config.num_experts + (shared_size > 0 ? 1 : 0), hidden}), {}},
      {random({config.num_experts, 2 * size, hidden}), random({config.num_experts, hidden, size})},
      std::nullopt};
  if (shared_size > 0) {
    moe.shared_expert =
        Mlp{{random({2 * shared_size, hidden}), {}}, {random({hidden, shared_size}), {}}};
  }
  return moe;
}

/// A gated MLP of one token, [hidden] → [hidden].
at::Tensor gated_mlp(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  const at::Tensor products = at::mv(gate_up, x);
  const int64_t size = down.size(1);
  const at::Tensor gate = products.narrow(0, 0, size);
  return at::mv(down, gate / (1 + (-gate).exp()) * products.narrow(0, size, size));
}

/// What the whole of it is to be, in float64, token by token and expert by expert.
at::Tensor reference(const SparseMoe& moe, const at::Tensor& x) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& token : x.to(at::kDouble).unbind()) {
    const at::Tensor gates = at::mv(moe.gate.weight.to(at::kDouble), token);
    const at::Tensor probabilities = gates.narrow(0, 0, moe.num_experts).softmax(0);
    std::vector<int64_t> chosen;
    double total = 0;
    while (static_cast<int64_t>(chosen.size()) < moe.num_experts_per_tok) {
      at::Tensor left = probabilities.clone();
      for (const int64_t expert : chosen) left[expert] = -1;
      chosen.push_back(left.argmax().item<int64_t>());
      total += probabilities[chosen.back()].item<double>();
    }
    at::Tensor sum = at::zeros_like(token);
    for (const int64_t expert : chosen) {
      sum += probabilities[expert] / (moe.norm_topk_prob ? total : 1.0) *
             gated_mlp(token,
                       moe.experts.gate_up_proj[expert].to(at::kDouble),
                       moe.experts.down_proj[expert].to(at::kDouble));
    }
    if (moe.shared_expert) {
      sum += gates[moe.num_experts].sigmoid() *
             gated_mlp(token,
                       moe.shared_expert->gate_up_proj.weight.to(at::kDouble),
                       moe.shared_expert->down_proj.weight.to(at::kDouble));
    }
    out.push_back(sum);
  }
  return at::stack(out);
}

class Moe : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(0); }

 private:
  c10::InferenceMode no_gradients_;
};

TEST_F(Moe, IsTheWeightedSumOfEachTokensExperts) {
  for (const MoeConfig& config : {kPlain, kShared}) {
    const SparseMoe moe = random_moe(config);
    for (const int64_t tokens : {1, 2, 3, 40}) {
      const at::Tensor x = at::randn({tokens, config.hidden_size});
      const at::Tensor out = moe.forward(x);
      ASSERT_EQ(out.sizes(), x.sizes());
      EXPECT_LT(relative_error(out, reference(moe, x)), 1e-5) << tokens;
    }
  }
}

TEST_F(Moe, AllExpertsOrOneExpert) {
  MoeConfig config = kShared;
  for (const int64_t top_k : {int64_t{1}, config.num_experts}) {
    config.num_experts_per_tok = top_k;
    const SparseMoe moe = random_moe(config);
    const at::Tensor x = at::randn({5, config.hidden_size});
    EXPECT_LT(relative_error(moe.forward(x), reference(moe, x)), 1e-5) << top_k;
  }
}

TEST_F(Moe, OfEqualExpertsTheLowestWins) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    SparseMoe moe = random_moe(kShared, dtype);
    moe.gate.weight.zero_();
    const at::Tensor x = at::randn({3, kShared.hidden_size}).abs().to(dtype);
    const at::Tensor first = at::tensor({0, 1, 2}, at::kLong).expand({3, 3});
    EXPECT_TRUE(at::equal(moe.route(x).index, first)) << c10::toString(dtype);
    for (const int64_t expert : {10, 4, 7, 6}) moe.gate.weight[expert].fill_(0.01);
    const at::Tensor equal = at::tensor({4, 6, 7}, at::kLong).expand({3, 3});
    EXPECT_TRUE(at::equal(moe.route(x).index, equal)) << c10::toString(dtype);
  }
}

TEST_F(Moe, ReadsOnlyTheExpertsThatWereChosen) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const SparseMoe moe = random_moe(kShared, dtype);
    for (const int64_t tokens : {1, 2}) {
      const at::Tensor x = at::randn({tokens, kShared.hidden_size}).to(dtype);
      SparseMoe poisoned = moe;
      poisoned.experts = {moe.experts.gate_up_proj.clone(), moe.experts.down_proj.clone()};
      const at::Tensor chosen = moe.route(x).index;
      for (int64_t expert = 0; expert < moe.num_experts; ++expert) {
        if ((chosen == expert).any().item<bool>()) continue;
        poisoned.experts.gate_up_proj[expert].fill_(std::numeric_limits<double>::quiet_NaN());
        poisoned.experts.down_proj[expert].fill_(std::numeric_limits<double>::quiet_NaN());
      }
      EXPECT_TRUE(poisoned.experts.gate_up_proj.isnan().any().item<bool>());
      EXPECT_TRUE(at::equal(poisoned.forward(x), moe.forward(x))) << c10::toString(dtype);
      EXPECT_TRUE(at::equal(experts_grouped(x, moe.route(x), poisoned.experts),
                            experts_grouped(x, moe.route(x), moe.experts)));
    }
  }
}

TEST_F(Moe, PackedRowsGetWhatEachGetsAlone) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const SparseMoe moe = random_moe(kShared, dtype);
    const at::Tensor x = at::randn({70, kShared.hidden_size}).to(dtype);
    const at::Tensor packed = moe.forward(x);
    const Routing routing = moe.route(x);
    for (int64_t row = 0; row < x.size(0); ++row) {
      const at::Tensor alone = x.narrow(0, row, 1);
      EXPECT_TRUE(at::equal(moe.route(alone).index, routing.index.narrow(0, row, 1))) << row;
      const double tolerance = dtype == at::kFloat ? 1e-5 : 2 * kOneRounding;
      EXPECT_LT(relative_error(packed.narrow(0, row, 1), moe.forward(alone)), tolerance) << row;
    }
  }
}

TEST_F(Moe, RemembersNothingFromStepToStep) {
  // Two sessions in turn, one step stateless or a prefill (many rows), the next a decode (one).
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const SparseMoe moe = random_moe(kShared, dtype);
    std::vector<at::Tensor> steps;
    for (const int64_t rows : {9, 7, 1, 1, 9, 1, 1, 12, 1}) {
      steps.push_back(at::randn({rows, kShared.hidden_size}).to(dtype));
    }
    std::vector<Routing> routings;
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& step : steps) {
      routings.push_back(moe.route(step));
      outputs.push_back(moe.forward(step));
    }
    for (std::size_t i = steps.size(); i-- > 0;) {  // the other way round
      EXPECT_TRUE(at::equal(moe.route(steps[i]).index, routings[i].index)) << i;
      EXPECT_TRUE(at::equal(moe.forward(steps[i]), outputs[i])) << i;
    }
  }
}

TEST_F(Moe, ARowThatIsNotFiniteHarmsNoOther) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const SparseMoe moe = random_moe(kShared, dtype);
    at::Tensor x = at::randn({6, kShared.hidden_size}).to(dtype);
    const at::Tensor sound = moe.forward(x);
    x[2][5] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor out = moe.forward(x);
    EXPECT_TRUE(out[2].isnan().all().item<bool>()) << c10::toString(dtype);
    for (const int64_t row : {0, 1, 3, 4, 5}) {
      EXPECT_LT(relative_error(out[row], sound[row]), 2 * kOneRounding) << row;
    }
  }
}

TEST_F(Moe, GroupedProductsAreTheOnesOneByOne) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const SparseMoe moe = random_moe(kShared, dtype);
    for (const int64_t tokens : {1, 3, 50}) {
      const at::Tensor x = at::randn({tokens, kShared.hidden_size}).to(dtype);
      const Routing routing = moe.route(x);
      const double tolerance = dtype == at::kFloat ? 1e-5 : 2 * kOneRounding;
      EXPECT_LT(relative_error(experts_grouped(x, routing, moe.experts),
                               experts_one_by_one(x, routing, moe.experts)),
                tolerance)
          << c10::toString(dtype) << " " << tokens;
    }
  }
}

TEST_F(Moe, GroupedProductsWantWholeSixteenBytes) {
  const auto experts = [](int64_t hidden, int64_t size, at::ScalarType dtype) {
    return ExpertWeights{at::empty({2, 2 * size, hidden}, dtype),
                         at::empty({2, hidden, size}, dtype)};
  };
  EXPECT_TRUE(takes_grouped_products(experts(64, 40, at::kBFloat16)));
  EXPECT_FALSE(takes_grouped_products(experts(64, 44, at::kBFloat16)));
  EXPECT_TRUE(takes_grouped_products(experts(64, 44, at::kFloat)));
  EXPECT_FALSE(takes_grouped_products(experts(60, 40, at::kBFloat16)));
}

// The kernels for bfloat16 on a CPU against their twins.

class MoeKernels : public Moe {
 protected:
  void SetUp() override {
    Moe::SetUp();
    if (!takes_bf16_kernels(at::zeros({1, 32}, at::kBFloat16))) {
      GTEST_SKIP() << "this processor has no AVX-512 BF16: it takes the twins";
    }
  }
};

TEST_F(MoeKernels, LinearOfAnyNumberOfRows) {
  for (const int64_t tokens : {1, 2, 3, 4, 5, 67}) {
    for (const auto& [out_features, in_features] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 32}, {7, 96}, {65, 1024}, {513, 64}}) {
      const at::Tensor x = at::randn({tokens, in_features}).to(at::kBFloat16);
      const at::Tensor weight = at::randn({out_features, in_features}).to(at::kBFloat16);
      const at::Tensor expected = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
      const at::Tensor out = linear_rows(x, weight);
      ASSERT_EQ(out.sizes(), expected.sizes());
      EXPECT_LT(relative_error(out, expected), kOneRounding) << tokens << " " << out_features;
    }
  }
}

TEST_F(MoeKernels, RoutesAsTheTwin) {
  for (const bool norm_topk_prob : {false, true}) {
    for (const auto& [num_experts, top_k] :
         std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {8, 8}, {64, 8}, {512, 10}}) {
      // As columns of a wider tensor; in bfloat16 many of 300 x 512 logits are equal.
      const at::Tensor logits =
          (at::randn({300, num_experts + 1}) * 3).to(at::kBFloat16).narrow(1, 0, num_experts);
      const Routing routing = top_k_routing_bf16(logits, top_k, norm_topk_prob);
      const Routing twin = top_k_routing(logits, top_k, norm_topk_prob);
      EXPECT_TRUE(at::equal(routing.index, twin.index)) << num_experts;
      EXPECT_LT(relative_error(routing.weights, twin.weights), kOneRounding) << num_experts;
    }
  }
}

/// Sizes whose rows fill no tile, one tile, several blocks.
struct Sizes {
  int64_t hidden;
  int64_t num_experts;
  int64_t top_k;
  int64_t intermediate;
  int64_t shared;
  int64_t tokens;
};

TEST_F(MoeKernels, ExpertsAsTheTwin) {
  for (const Sizes& sizes : {Sizes{32, 1, 1, 32, 0, 1},
                             Sizes{64, 5, 2, 96, 64, 1},
                             Sizes{96, 7, 3, 32, 0, 9},
                             Sizes{1024, 16, 4, 64, 96, 30},
                             Sizes{4096, 3, 2, 32, 64, 90},
                             Sizes{32, 2, 1, 4096, 0, 90}}) {
    const SparseMoe moe = random_moe({.hidden_size = sizes.hidden,
                                      .num_experts = sizes.num_experts,
                                      .num_experts_per_tok = sizes.top_k,
                                      .moe_intermediate_size = sizes.intermediate,
                                      .shared_expert_intermediate_size = sizes.shared,
                                      .norm_topk_prob = true},
                                     at::kBFloat16);
    const at::Tensor x = at::randn({sizes.tokens, sizes.hidden}).to(at::kBFloat16);
    const Routing routing = moe.route(x);
    at::Tensor twin = experts_one_by_one(x, routing, moe.experts);
    at::Tensor out;
    if (moe.shared_expert) {
      const at::Tensor weights = at::randn({sizes.tokens, 1}).sigmoid().to(at::kBFloat16);
      const SharedExpert shared{
          moe.shared_expert->gate_up_proj.weight, moe.shared_expert->down_proj.weight, weights};
      out = experts_bf16(x, routing, moe.experts, &shared);
      twin = twin + weights * moe.shared_expert->forward(x);
    } else {
      out = experts_bf16(x, routing, moe.experts, nullptr);
    }
    // Sums in another order round a few products of a kind differently on the way.
    EXPECT_LT(relative_error(out, twin), 2 * kOneRounding) << sizes.hidden;
    EXPECT_LT((out != twin).to(at::kFloat).mean().item<double>(), 0.2) << sizes.hidden;
  }
}

TEST_F(MoeKernels, ARowIsBitForBitTheSameWhoeverIsBesideItOnAnyNumberOfThreads) {
  const SparseMoe moe = random_moe(kShared, at::kBFloat16);
  const at::Tensor x = at::randn({70, kShared.hidden_size}).to(at::kBFloat16);
  const at::Tensor packed = moe.forward(x);
  for (int64_t row = 0; row < x.size(0); ++row) {
    EXPECT_TRUE(at::equal(packed.narrow(0, row, 1), moe.forward(x.narrow(0, row, 1)))) << row;
  }
  EXPECT_TRUE(at::equal(packed.narrow(0, 11, 6), moe.forward(x.narrow(0, 11, 6))));
  const int threads = at::get_num_threads();
  for (const int other : {1, 3, 7}) {
    at::set_num_threads(other);
    EXPECT_TRUE(at::equal(moe.forward(x), packed)) << other;
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace meshnet
