// Attention of many rows in bfloat16 on a CPU, against float64 and its twin.

#include "models/kernels/bf16_attention_cpu.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "models/kernels/bf16_cpu.h"
#include "models/ops.h"

namespace meshnet {
namespace {

constexpr double kScaling = 0.15;

struct Inputs {
  at::Tensor query;  // [rows, num_attention_heads, head_dim], a view of rows that are longer
  at::Tensor key;    // [num_key_value_heads, length, head_dim], a view of a longer buffer
  at::Tensor value;
};

Inputs random_inputs(
    int64_t rows, int64_t past, int64_t kv_heads, int64_t group, int64_t head_dim) {
  const auto cached = [&] {
    const int64_t length = past + rows;
    return at::randn({kv_heads, length + 9, head_dim}).to(at::kBFloat16).narrow(1, 0, length);
  };
  const at::Tensor qkv = at::randn({rows, kv_heads * (group + 2), head_dim}) * 2;
  return {qkv.to(at::kBFloat16).narrow(1, 0, kv_heads * group), cached(), cached()};
}

/// softmax(query · key) · value in float64 with every step written out, and the same with |value|;
/// each [rows, num_attention_heads * head_dim].
std::pair<at::Tensor, at::Tensor> reference(const Inputs& inputs, int64_t sliding_window) {
  const int64_t rows = inputs.query.size(0);
  const int64_t length = inputs.key.size(1);
  const int64_t kv_heads = inputs.key.size(0);
  const int64_t group = inputs.query.size(1) / kv_heads;
  const at::Tensor query =  // [kv_heads, group * rows, head_dim]
      inputs.query.to(at::kDouble).transpose(0, 1).reshape({kv_heads, group * rows, -1});
  const at::Tensor position = at::arange(length - rows, length).unsqueeze(1);
  const at::Tensor other = at::arange(length).unsqueeze(0);
  at::Tensor hidden = other > position;
  if (sliding_window > 0) hidden = hidden | (position - other >= sliding_window);
  const at::Tensor scores =
      at::matmul(query, inputs.key.to(at::kDouble).transpose(1, 2)) * kScaling;
  const at::Tensor weights = at::softmax(
      scores.masked_fill(hidden.repeat({group, 1}), -std::numeric_limits<double>::infinity()), -1);
  const auto weighted = [&](const at::Tensor& value) {
    return at::matmul(weights, value)
        .view({kv_heads * group, rows, -1})
        .transpose(0, 1)
        .reshape({rows, -1});
  };
  const at::Tensor value = inputs.value.to(at::kDouble);
  return {weighted(value), weighted(value.abs())};
}

/// The largest error as a fraction of what is allowed: a weight is rounded to bfloat16, and so is
/// the result, each by at most 2^-8 of it; together no more than 2^-7 of Σ weight * |value|. What
/// the float32 scores add is hundreds of times less.
double error(const at::Tensor& out, const Inputs& inputs, int64_t sliding_window) {
  const auto [expected, magnitude] = reference(inputs, sliding_window);
  return ((out.to(at::kDouble) - expected).abs() / (magnitude * 0x1p-7)).max().item<double>();
}

class Bf16Attention : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(0);
    if (!takes_bf16_kernels(at::zeros({1, 32}, at::kBFloat16))) {
      GTEST_SKIP() << "this processor has no AVX-512 BF16: it takes the twin";
    }
  }

 private:
  c10::InferenceMode no_gradients_;
};

TEST_F(Bf16Attention, KnowsWhatItTakes) {
  EXPECT_TRUE(takes_attend_rows(at::zeros({3, 5, 96}, at::kBFloat16).narrow(1, 1, 2)));
  EXPECT_FALSE(takes_attend_rows(at::zeros({3, 2, 160}, at::kBFloat16)));
  EXPECT_FALSE(takes_attend_rows(at::zeros({3, 2, 64})));
}

TEST_F(Bf16Attention, IsRightForAnyShape) {
  const std::vector<int64_t> groups{1, 2, 7};
  const std::vector<int64_t> windows{0, 1, 8, 100};
  std::size_t turn = 0;
  for (const int64_t head_dim : {32, 64, 96, 128, 256}) {
    for (const int64_t rows : {2, 3, 5, 63, 64, 65, 130, 513}) {
      for (const int64_t past : {0, 1, 100, 700}) {
        const int64_t group = groups[turn % groups.size()];
        const int64_t window = windows[turn % windows.size()];
        ++turn;
        const Inputs inputs = random_inputs(rows, past, 2, group, head_dim);
        const at::Tensor out =
            attend_rows(inputs.query, inputs.key, inputs.value, kScaling, window);
        ASSERT_EQ(out.sizes(), (at::IntArrayRef{rows, 2 * group * head_dim}));
        EXPECT_LT(error(out, inputs, window), 1.01)
            << rows << " rows after " << past << ", " << group << " heads of " << head_dim
            << " in a group, window " << window;
      }
    }
  }
}

TEST_F(Bf16Attention, ReadsKeysAndValuesRowByRowToo) {
  Inputs inputs = random_inputs(70, 0, 3, 2, 64);
  const at::Tensor qkv = at::randn({70, 12, 64}).to(at::kBFloat16);
  inputs.key = qkv.narrow(1, 6, 3).transpose(0, 1);
  inputs.value = qkv.narrow(1, 9, 3).transpose(0, 1);
  EXPECT_LT(error(attend_rows(inputs.query, inputs.key, inputs.value, kScaling, 0), inputs, 0),
            1.01);
}

TEST_F(Bf16Attention, ARowDependsOnNothingBesideIt) {
  for (const int64_t window : {0, 5, 300}) {
    const auto [query, key, value] = random_inputs(150, 201, 2, 7, 64);
    const at::Tensor together = attend_rows(query, key, value, kScaling, window);
    for (const int64_t row : {0, 1, 54, 55, 56, 148, 149}) {
      const int64_t seen = 201 + row + 1;
      const at::Tensor alone = attend_rows(query.narrow(0, row, 1),
                                           key.narrow(1, 0, seen),
                                           value.narrow(1, 0, seen),
                                           kScaling,
                                           window);
      EXPECT_TRUE(at::equal(alone[0], together[row])) << "row " << row << ", window " << window;
    }
  }
}

TEST_F(Bf16Attention, TheNumberOfThreadsDoesNotMatter) {
  const auto [query, key, value] = random_inputs(200, 30, 3, 3, 128);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = attend_rows(query, key, value, kScaling, 0);
  for (const int many : {2, 3, 8}) {
    at::set_num_threads(many);
    EXPECT_TRUE(at::equal(attend_rows(query, key, value, kScaling, 0), alone)) << many;
  }
  at::set_num_threads(threads);
}

TEST_F(Bf16Attention, SurvivesFarApartScores) {
  // The block of the first 256 keys holds nothing that counts once key 300 is seen, nor the other
  // way round.
  for (const float size : {100.0F, 1e10F}) {
    for (const int64_t largest : {7, 300}) {
      const at::Tensor query = at::full({4, 2, 64}, size, at::kBFloat16);
      at::Tensor key = at::full({1, 400, 64}, -size, at::kBFloat16);
      key[0][largest].fill_(size);
      const at::Tensor value = at::randn({1, 400, 64}).to(at::kBFloat16);
      const at::Tensor out = attend_rows(query, key, value, 1.0, 0);
      EXPECT_TRUE(at::equal(out, value[0][largest].repeat({4, 2}))) << size << " at " << largest;
    }
  }
}

TEST_F(Bf16Attention, KeepsWhatIsNoNumberInItsRow) {
  const auto [query, key, value] = random_inputs(20, 0, 1, 2, 64);
  const at::Tensor before = attend_rows(query, key, value, kScaling, 0);
  query[7][1][5] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor out = attend_rows(query, key, value, kScaling, 0);
  EXPECT_TRUE(out[7].narrow(0, 64, 64).isnan().all().item<bool>());
  EXPECT_EQ(out.isnan().sum().item<int64_t>(), 64);
  EXPECT_TRUE(at::equal(out.narrow(0, 0, 7), before.narrow(0, 0, 7)));
  EXPECT_TRUE(at::equal(out.narrow(0, 8, 12), before.narrow(0, 8, 12)));
}

TEST_F(Bf16Attention, AgreesWithItsTwin) {
  for (const int64_t window : {0, 1, 40, 1000}) {
    for (const int64_t rows : {1, 2, 90}) {
      const Inputs inputs = random_inputs(rows, 60, 2, 3, 64);
      const auto& [query, key, value] = inputs;
      const at::Tensor twin = causal_attention(
          query.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble), kScaling, window);
      const at::Tensor expected = reference(inputs, window).first;
      EXPECT_TRUE(at::allclose(twin, expected, 1e-10, 1e-10)) << rows << " rows, window " << window;
      // Through the choice between the kernels, too, one row included.
      EXPECT_LT(error(causal_attention(query, key, value, kScaling, window), inputs, window), 1.01)
          << rows << " rows, window " << window;
    }
  }
}

}  // namespace
}  // namespace meshnet
