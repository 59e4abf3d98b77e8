// The kernels for bfloat16 on a CPU against their twins, operation by operation.

#include "models/kernels/bf16_cpu.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "models/kernels/silu_and_mul.h"
#include "models/ops.h"
#include "models/rope.h"
#include "support.h"

namespace meshnet {
namespace {

constexpr double kOneRounding = 1.0 / 256;  // of bfloat16

class Bf16Cpu : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(0);
    if (!takes_bf16_kernels(at::zeros({1, 32}, at::kBFloat16))) {
      GTEST_SKIP() << "this processor has no AVX-512 BF16: it takes the twins";
    }
  }

 private:
  c10::InferenceMode no_gradients_;
};

TEST_F(Bf16Cpu, KnowsWhatItTakes) {
  EXPECT_FALSE(takes_bf16_kernels(at::zeros({1, 32})));
  EXPECT_FALSE(takes_bf16_kernels(at::zeros({1, 48}, at::kBFloat16)));
  EXPECT_FALSE(takes_bf16_kernels(at::zeros({1, 64}, at::kBFloat16).slice(1, 0, 64, 2)));
  EXPECT_TRUE(takes_bf16_kernels(at::zeros({3, 5, 64}, at::kBFloat16).narrow(1, 1, 2)));
}

TEST_F(Bf16Cpu, LinearOfOneRow) {
  for (const auto& [out_features, in_features] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 32}, {7, 96}, {960, 576}, {2000, 1536}}) {
    const at::Tensor x = at::randn({1, in_features}).to(at::kBFloat16);
    const at::Tensor weight = at::randn({out_features, in_features}).to(at::kBFloat16);
    const at::Tensor bias = at::randn({out_features}).to(at::kBFloat16);
    for (const at::Tensor& each : {at::Tensor(), bias}) {
      const at::Tensor expected = at::linear(x.to(at::kDouble),
                                             weight.to(at::kDouble),
                                             each.defined() ? each.to(at::kDouble) : at::Tensor());
      const at::Tensor out = linear_row(x, weight, each);
      ASSERT_EQ(out.sizes(), expected.sizes());
      EXPECT_LT(relative_error(out, expected), kOneRounding) << out_features;
    }
  }
}

TEST_F(Bf16Cpu, LinearCarriesWhatIsNotFinite) {
  at::Tensor x = at::ones({1, 64}, at::kBFloat16);
  const at::Tensor weight = at::ones({4, 64}, at::kBFloat16);
  x[0][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(linear_row(x, weight, {}).isnan().all().item<bool>());
  x[0][3] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(linear_row(x, weight, {}).isinf().all().item<bool>());
}

TEST_F(Bf16Cpu, RmsNorm) {
  for (const int64_t rows : {1, 3, 200}) {
    const at::Tensor x = (at::randn({rows, 576}) * 3).to(at::kBFloat16);
    const at::Tensor weight = at::randn({576}).to(at::kBFloat16);
    const at::Tensor twin = at::rms_norm(x, {576}, {}, 1e-5) * weight;
    const at::Tensor out = rms_norm_bf16(x, weight, 1e-5, /*zero_centred=*/false);
    // The mean of squares may differ in its last bit, and with it, rarely, a rounding.
    EXPECT_LT(relative_error(out, twin), 2 * kOneRounding);
    EXPECT_LT((out != twin).to(at::kFloat).mean().item<double>(), 1e-2);
  }
}

TEST_F(Bf16Cpu, RotatesBitForBitAsTheTwin) {
  for (const int64_t rotary_dim : {32, 64}) {  // a part of each head, or all of it
    const RotaryEmbedding rotary{at::randn({5, rotary_dim}).to(at::kBFloat16),
                                 at::randn({5, rotary_dim}).to(at::kBFloat16)};
    at::Tensor states = at::randn({5, 9, 64}).to(at::kBFloat16);
    states[1][2][3] = -0.0F;
    states[2][3][20] = std::numeric_limits<float>::infinity();
    const at::Tensor part = states.narrow(1, 2, 6);
    const at::Tensor expected = apply_rotary_pos_emb(part, rotary);
    const at::Tensor others = states.narrow(1, 0, 2).clone();
    rotate_bf16(part.narrow(2, 0, rotary_dim), rotary.cos, rotary.sin);
    EXPECT_TRUE(at::equal(part.nan_to_num(), expected.nan_to_num())) << rotary_dim;
    EXPECT_TRUE(at::equal(part.isnan(), expected.isnan())) << rotary_dim;
    EXPECT_TRUE(at::equal(states.narrow(1, 0, 2), others)) << rotary_dim;
  }
}

TEST_F(Bf16Cpu, SiluAndMul) {
  for (const int64_t tokens : {1, 3, 100}) {
    const at::Tensor gate_up = (at::randn({tokens, 9728}) * 6).to(at::kBFloat16);
    const at::Tensor twin = silu_and_mul_reference(gate_up);
    const at::Tensor out = silu_and_mul_bf16(gate_up);
    ASSERT_EQ(out.sizes(), twin.sizes());
    // silu may differ in its last bits, and with it, rarely, one of the two roundings.
    EXPECT_TRUE(at::allclose(out, twin, 2 * kOneRounding, 0.0)) << tokens;
    EXPECT_LT((out != twin).to(at::kFloat).mean().item<double>(), 1e-3) << tokens;
  }
}

TEST_F(Bf16Cpu, SiluOfWhatIsLargeOrNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  at::Tensor gate_up = at::ones({1, 32}, at::kBFloat16);
  int64_t i = 0;
  for (const float gate : {0.0F, 100.0F, -100.0F, 3e38F, -3e38F, kInfinity, -kInfinity, NAN}) {
    gate_up[0][i++] = gate;
  }
  const at::Tensor out = silu_and_mul_bf16(gate_up);
  EXPECT_TRUE(at::allclose(out, silu_and_mul_reference(gate_up), 0.0, 0.0, /*equal_nan=*/true))
      << out;
}

TEST_F(Bf16Cpu, AttendsOverAnyLengthWithAnyHeadDim) {
  for (const int64_t head_dim : {32, 64, 96, 128, 256}) {
    ASSERT_TRUE(takes_attend_row(at::zeros({1, 2, head_dim}, at::kBFloat16)));
    for (const int64_t length : {1, 2, 16, 31, 700}) {
      const at::Tensor query = (at::randn({1, 6, head_dim}) * 2).to(at::kBFloat16);
      // Views of a longer buffer, as a cache hands out.
      const at::Tensor key = at::randn({2, 1024, head_dim}).to(at::kBFloat16).narrow(1, 0, length);
      const at::Tensor value =
          at::randn({2, 1024, head_dim}).to(at::kBFloat16).narrow(1, 0, length);
      const at::Tensor expected = causal_attention(
          query.to(at::kDouble), key.to(at::kDouble), value.to(at::kDouble), 0.125, 0);
      EXPECT_LT(relative_error(attend_row(query, key, value, 0.125), expected), 2 * kOneRounding)
          << length << " keys of " << head_dim;
    }
  }
  EXPECT_FALSE(takes_attend_row(at::zeros({2, 2, 64}, at::kBFloat16)));
  EXPECT_FALSE(takes_attend_row(at::zeros({1, 2, 160}, at::kBFloat16)));
}

TEST_F(Bf16Cpu, AttentionReadsKeysAndValuesRowByRowToo) {
  const at::Tensor query = at::randn({1, 4, 64}).to(at::kBFloat16);
  const at::Tensor key_value = at::randn({50, 4, 64}).to(at::kBFloat16).transpose(0, 1);
  const at::Tensor key = key_value.narrow(0, 0, 2);
  const at::Tensor value = key_value.narrow(0, 2, 2);
  EXPECT_TRUE(at::equal(attend_row(query, key, value, 0.125),
                        attend_row(query, key.contiguous(), value.contiguous(), 0.125)));
}

TEST_F(Bf16Cpu, AttentionCarriesWhatIsNoNumber) {
  at::Tensor query = at::ones({1, 2, 64}, at::kBFloat16);
  query[0][1][3] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor key_value = at::ones({1, 20, 64}, at::kBFloat16);
  const at::Tensor out = attend_row(query, key_value, key_value, 1.0);
  EXPECT_TRUE(at::equal(out[0].narrow(0, 0, 64), key_value[0][0]));
  EXPECT_TRUE(out[0].narrow(0, 64, 64).isnan().all().item<bool>());
}

TEST_F(Bf16Cpu, AttentionSurvivesFarApartScores) {
  at::Tensor query = at::full({1, 1, 64}, 8.0F, at::kBFloat16);
  at::Tensor key = at::full({1, 20, 64}, -8.0F, at::kBFloat16);
  key[0][7].fill_(8.0F);
  const at::Tensor value = at::randn({1, 20, 64}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(attend_row(query, key, value, 1.0)[0], value[0][7]));
}

}  // namespace
}  // namespace meshnet
