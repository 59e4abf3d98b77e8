#include "models/ops.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/kernels/silu_and_mul.h"
#include "models/layers/rms_norm.h"
#include "support.h"

namespace meshnet {
namespace {

/// LlamaRMSNorm of transformers, operation by operation.
at::Tensor rms_norm_of_transformers(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor hidden_states = x.to(at::kFloat);
  const at::Tensor variance = hidden_states.pow(2).mean(-1, true);
  return weight * (hidden_states * at::rsqrt(variance + eps)).to(x.scalar_type());
}

/// Gemma3RMSNorm of transformers, operation by operation.
at::Tensor zero_centred_norm_of_transformers(const at::Tensor& x,
                                             const at::Tensor& weight,
                                             double eps) {
  const at::Tensor hidden_states = x.to(at::kFloat);
  const at::Tensor variance = hidden_states.pow(2).mean(-1, true);
  const at::Tensor output = hidden_states * at::rsqrt(variance + eps);
  return (output * (1.0 + weight.to(at::kFloat))).to(x.scalar_type());
}

TEST(RmsNorm, RoundsWhereTransformersDoes) {
  at::manual_seed(0);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 7, 300}) {
      const at::Tensor x = (at::randn({rows, 576}) * 3).to(dtype);
      at::Tensor weight = (at::rand({576}) + 0.5).to(dtype);
      weight[3] = 0.001;
      const RmsNorm norm{weight, 1e-5};
      EXPECT_TRUE(at::equal(norm.forward(x), rms_norm_of_transformers(x, weight, 1e-5)))
          << c10::toString(dtype) << " rows " << rows;
    }
  }
}

TEST(RmsNorm, ZeroCentredKeepsWeightsThatVanishBesideOne) {
  // In bf16 1 + 0.001 is 1; the sum has to be made in float32.
  at::manual_seed(0);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 7, 300}) {
      const at::Tensor x = (at::randn({rows, 576}) * 3).to(dtype);
      const at::Tensor weight =
          at::where(at::rand({576}) < 0.5, 0.003, at::rand({576}) - 0.5).to(dtype);
      const RmsNorm norm{weight, 1e-5, /*zero_centred=*/true};
      const at::Tensor expected = zero_centred_norm_of_transformers(x, weight, 1e-5);
      // Where the order of a float32 sum decides, a value may fall to the other side.
      EXPECT_LT(at::ne(norm.forward(x), expected).sum().item<int64_t>(), x.numel() / 100 + 1)
          << c10::toString(dtype) << " rows " << rows;
      EXPECT_LT(relative_error(norm.forward(x), expected), dtype == at::kFloat ? 1e-6 : 4e-3);
    }
  }
}

TEST(RmsNorm, NormalisesTheHeadsOfAView) {
  at::manual_seed(0);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor qkv = at::randn({3, 8, 32}).to(dtype);
    const RmsNorm norm{at::rand({32}).to(dtype), 1e-6};
    const at::Tensor heads = qkv.narrow(1, 2, 5);
    EXPECT_TRUE(at::equal(norm.forward(heads), norm.forward(heads.contiguous())));
  }
}

/// softmax(query · key) · value of one head, with everything written out. query [rows, head_dim];
/// each row sees its last `window` keys.
at::Tensor attention_of_one_head(const at::Tensor& query,
                                 const at::Tensor& key,
                                 const at::Tensor& value,
                                 double scaling,
                                 int64_t window) {
  std::vector<at::Tensor> rows;
  const int64_t past = key.size(0) - query.size(0);
  for (int64_t row = 0; row < query.size(0); ++row) {
    const int64_t end = past + row + 1;
    const int64_t first = std::max<int64_t>(0, end - window);
    const at::Tensor seen = key.narrow(0, first, end - first);
    const at::Tensor weights = at::softmax(at::mv(seen, query[row]) * scaling, 0);
    rows.push_back(at::mv(value.narrow(0, first, end - first).t(), weights));
  }
  return at::stack(rows);
}

TEST(CausalAttention, GroupsHeadsAndSeesOnlyTheNotLaterOfItsWindow) {
  at::manual_seed(0);
  constexpr int64_t kLength = 9;
  const at::Tensor query = at::randn({kLength, 6, 8});
  const at::Tensor key = at::randn({kLength, 2, 8});
  const at::Tensor value = at::randn({kLength, 2, 8});
  const at::Tensor keys = key.transpose(0, 1);
  const at::Tensor values = value.transpose(0, 1);
  for (const int64_t sliding_window : {0, 1, 4, 8, 9, 20}) {
    const int64_t window = sliding_window == 0 ? kLength : sliding_window;
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < 6; ++head) {
      heads.push_back(attention_of_one_head(
          query.select(1, head), key.select(1, head / 3), value.select(1, head / 3), 0.3, window));
    }
    const at::Tensor expected = at::cat(heads, 1);

    // The newest rows over keys and values of a past: the last rows of the whole.
    for (const int64_t rows : {1, 2, 5, 9}) {
      const at::Tensor newest = query.narrow(0, kLength - rows, rows);
      const at::Tensor expected_rows = expected.narrow(0, kLength - rows, rows);
      EXPECT_TRUE(at::allclose(
          causal_attention(newest, keys, values, 0.3, sliding_window), expected_rows, 1e-4, 1e-5))
          << rows << " rows, window " << sliding_window;

      // What no row of them sees need not be there.
      const int64_t seen = std::min(kLength, window - 1 + rows);
      EXPECT_TRUE(at::allclose(causal_attention(newest,
                                                keys.narrow(1, kLength - seen, seen),
                                                values.narrow(1, kLength - seen, seen),
                                                0.3,
                                                sliding_window),
                               expected_rows,
                               1e-4,
                               1e-5))
          << rows << " rows, window " << sliding_window << " and no more";
    }
  }
}

TEST(SiluAndMul, GatesTheSecondHalfByTheFirst) {
  at::manual_seed(0);
  std::vector<at::Device> devices{at::kCPU};
  if (at::hasCUDA()) devices.emplace_back(at::kCUDA, 0);  // the kernel, where there is a GPU
  for (const at::Device device : devices) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor gate_up = (at::randn({5, 614}) * 4).to(dtype);
      const at::Tensor out = silu_and_mul(gate_up.to(device)).cpu();
      ASSERT_EQ(out.sizes(), (at::IntArrayRef{5, 307}));
      EXPECT_EQ(out.scalar_type(), dtype);
      const at::Tensor gate = gate_up.narrow(1, 0, 307).to(at::kDouble);
      const at::Tensor up = gate_up.narrow(1, 307, 307).to(at::kDouble);
      const double tolerance = dtype == at::kFloat ? 1e-6 : 1e-2;
      EXPECT_LT(relative_error(out, gate / (1 + at::exp(-gate)) * up), tolerance)
          << device << " " << c10::toString(dtype);
    }
  }
}

}  // namespace
}  // namespace meshnet
