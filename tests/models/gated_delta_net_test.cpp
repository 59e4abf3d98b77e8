// The gated delta-net layer of both families against transformers, and from state as from nothing;
// its convolution and its norm.

#include "models/layers/gated_delta_net.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cache/layer_cache.h"
#include "models/kernels/causal_conv.h"
#include "models/kernels/rms_norm_gated.h"
#include "models/weights.h"
#include "support.h"

namespace meshnet {
namespace {

constexpr int64_t kLayer = 5;
constexpr int64_t kTokens = 130;
constexpr double kFloatRounding = 1e-5;
constexpr double kBf16Rounding = 1.0 / 256;  // of one number
constexpr double kBf16Layer = 2e-2;          // of several in a row, by other sums than theirs

// As in tests/golden/make_delta_golden.py.
const GatedDeltaNetConfig kConfig{.linear_num_key_heads = 2,
                                  .linear_num_value_heads = 6,
                                  .linear_key_head_dim = 24,
                                  .linear_value_head_dim = 48,
                                  .linear_conv_kernel_dim = 4};

class EveryGatedDeltaNet : public testing::TestWithParam<std::tuple<std::string, at::ScalarType>> {
 protected:
  EveryGatedDeltaNet() {
    ModelConfig config;
    config.hidden_size = 96;
    config.rms_norm_eps = 1e-5;
    const std::string family = std::get<0>(GetParam());
    const std::filesystem::path golden = path_from_environment("MESHNET_DELTA_GOLDEN");
    golden_ = read_safetensors(golden / (family + ".safetensors"));
    checkpoint_ = std::make_unique<Checkpoint>(golden / family);
    const Weights weights(*checkpoint_, dtype(), at::kCPU);
    const auto load =
        family == "qwen3_next" ? load_qwen3_next_gated_delta_net : load_qwen3_5_gated_delta_net;
    layer_ = load(weights.at("linear_attn"), config, kConfig);
    used_ = weights.used();
    x_ = golden_.at("x").to(dtype());
  }

  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
  at::Tensor golden(const std::string& name) const {
    return golden_.at((dtype() == at::kFloat ? "float32." : "bfloat16.") + name);
  }
  double tolerance() const { return dtype() == at::kFloat ? kFloatRounding : kBf16Layer; }

  SliceCache session() const {
    const LayerGeometry geometry = gated_delta_net_geometry(kConfig);
    return {{kLayer, kLayer + 1}, {make_layer_cache(geometry, dtype(), at::kCPU)}};
  }
  static const RecurrentCache& state_of(SliceCache& cache) {
    return std::get<RecurrentCache>(cache.at(kLayer));
  }

  at::Tensor forward(const at::Tensor& x, SliceCache* cache) const {
    return layer_.forward(x, {{{0, x.size(0), 0, cache}}, {}, {}}, kLayer);
  }
  /// x_ of `tokens`, in pieces of these sizes, the last of them again and again.
  at::Tensor forward_cut(int64_t tokens,
                         const std::vector<int64_t>& sizes,
                         SliceCache& cache) const {
    std::vector<at::Tensor> out;
    int64_t first = 0;
    for (std::size_t i = 0; first < tokens; ++i) {
      const int64_t count = std::min(sizes[std::min(i, sizes.size() - 1)], tokens - first);
      out.push_back(forward(x_.narrow(0, first, count), &cache));
      first += count;
    }
    return at::cat(out);
  }

  Tensors golden_;
  std::unique_ptr<Checkpoint> checkpoint_;
  GatedDeltaNet layer_;
  std::set<std::string> used_;
  at::Tensor x_;

 private:
  c10::InferenceMode no_gradients_;
};

INSTANTIATE_TEST_SUITE_P(Families,
                         EveryGatedDeltaNet,
                         testing::Combine(testing::Values("qwen3_next", "qwen3_5"),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& each) {
                           return std::get<0>(each.param) + "_" +
                                  c10::toString(std::get<1>(each.param));
                         });

TEST_P(EveryGatedDeltaNet, IsTransformers) {
  SliceCache cache = session();
  EXPECT_LT(relative_error(forward(x_, &cache), golden("out")), tolerance());
  EXPECT_LT(relative_error(state_of(cache).delta_state, golden("state")), tolerance());
  EXPECT_LT(relative_error(state_of(cache).conv_state, golden("conv_state")), tolerance());
}

TEST_P(EveryGatedDeltaNet, UsesEveryTensor) {
  const std::vector<std::string> names = checkpoint_->names();
  EXPECT_EQ(used_, std::set<std::string>(names.begin(), names.end()));
}

TEST_P(EveryGatedDeltaNet, StatelessKeepsNothing) {
  const at::Tensor first = forward(x_, nullptr);
  EXPECT_LT(relative_error(first, golden("out")), tolerance());
  EXPECT_TRUE(at::equal(forward(x_, nullptr), first));
}

// B01: prompts shorter than the convolution, then decodes.
TEST_P(EveryGatedDeltaNet, ShortPromptsThenDecodes) {
  for (int64_t prompt = 1; prompt <= 4; ++prompt) {
    SliceCache cache = session();
    const int64_t tokens = prompt + 5;
    std::vector<at::Tensor> out = {forward(x_.narrow(0, 0, prompt), &cache)};
    const at::Tensor& conv_state = state_of(cache).conv_state;
    ASSERT_EQ(conv_state.sizes(), (std::vector<int64_t>{kConfig.conv_dim(), 3}));
    if (prompt < 3) {
      EXPECT_EQ(conv_state.narrow(1, 0, 3 - prompt).count_nonzero().item<int64_t>(), 0);
    }
    EXPECT_GT(conv_state.narrow(1, 2, 1).count_nonzero().item<int64_t>(), 0);
    for (int64_t t = prompt; t < tokens; ++t) out.push_back(forward(x_.narrow(0, t, 1), &cache));
    EXPECT_EQ(state_of(cache).conv_state.size(1), 3);
    const at::Tensor cached = at::cat(out);
    EXPECT_LT(relative_error(cached, golden("cached." + std::to_string(prompt))), tolerance());
    EXPECT_LT(relative_error(cached, forward(x_.narrow(0, 0, tokens), nullptr)), tolerance());
  }
}

// B05: the same output and the same state wherever a prompt is cut, at any length.
TEST_P(EveryGatedDeltaNet, TheSameWhereverAPromptIsCut) {
  for (const int64_t tokens : {31, 32, 33, 63, 64, 65, 127, 128, 129, 130}) {
    SliceCache whole = session();
    const at::Tensor expected = forward_cut(tokens, {tokens}, whole);
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{64, 66}, {65}, {1}, {3, 1, 32}}) {
      SliceCache cut = session();
      const at::Tensor out = forward_cut(tokens, sizes, cut);
      EXPECT_LT(relative_error(out, expected), tolerance()) << tokens;
      EXPECT_LT(relative_error(state_of(cut).delta_state, state_of(whole).delta_state), tolerance())
          << tokens;
      EXPECT_LT(relative_error(state_of(cut).conv_state, state_of(whole).conv_state), tolerance())
          << tokens;
      EXPECT_EQ(cut.nbytes(), whole.nbytes());
    }
  }
}

TEST_P(EveryGatedDeltaNet, SequencesOfABatchDoNotMeet) {
  SliceCache one = session();
  SliceCache other = session();
  forward(x_.narrow(0, 0, 40), &one);
  forward(x_.narrow(0, 50, 3), &other);
  SliceCache alone_one = session();
  SliceCache alone_other = session();
  forward(x_.narrow(0, 0, 40), &alone_one);
  forward(x_.narrow(0, 50, 3), &alone_other);

  const Step step{{{0, 1, 40, &one}, {1, 7, 0, nullptr}, {8, 33, 3, &other}}, {}, {}};
  const at::Tensor batch = layer_.forward(
      at::cat({x_.narrow(0, 40, 1), x_.narrow(0, 80, 7), x_.narrow(0, 53, 33)}), step, kLayer);
  const at::Tensor alone = at::cat({forward(x_.narrow(0, 40, 1), &alone_one),
                                    forward(x_.narrow(0, 80, 7), nullptr),
                                    forward(x_.narrow(0, 53, 33), &alone_other)});
  EXPECT_LT(relative_error(batch, alone), tolerance());
  EXPECT_LT(relative_error(state_of(one).delta_state, state_of(alone_one).delta_state),
            tolerance());
  EXPECT_LT(relative_error(state_of(other).delta_state, state_of(alone_other).delta_state),
            tolerance());
}

TEST_P(EveryGatedDeltaNet, ItsStateCostsWhatItsGeometrySays) {
  const LayerGeometry geometry = gated_delta_net_geometry(kConfig);
  SliceCache cache = session();
  for (const int64_t tokens : {1, 100, 1}) {
    forward(x_.narrow(0, 0, tokens), &cache);
    EXPECT_EQ(cache.nbytes(), fixed_bytes(geometry, dtype()));
    EXPECT_EQ(state_of(cache).conv_state.scalar_type(), dtype());
    EXPECT_EQ(state_of(cache).delta_state.scalar_type(), at::kFloat);
  }
  EXPECT_EQ(bytes_per_token(geometry, dtype()), 0);
}

class GatedDeltaNetParts : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(0); }

 private:
  c10::InferenceMode no_gradients_;
};

TEST_F(GatedDeltaNetParts, ConvolutionIsTransformers) {
  const Tensors golden =
      read_safetensors(path_from_environment("MESHNET_DELTA_GOLDEN") / "conv.safetensors");
  for (const std::string name : {"float32", "bfloat16"}) {
    const auto at = [&](const std::string& key) { return golden.at(name + "." + key); };
    const double tolerance = name == "float32" ? 1e-6 : 2 * kBf16Rounding;
    const at::Tensor x = at("x");
    const at::Tensor weight = at("weight").squeeze(1).t().contiguous();
    for (const auto convolve : {causal_conv, causal_conv_reference}) {
      at::Tensor fresh = at::zeros_like(at("state"));
      EXPECT_LT(relative_error(convolve(x, weight, fresh), at("fresh")), tolerance) << name;
      // In pieces, from one token on: shorter than the state is wide, too.
      for (const int64_t piece : {1, 2, 3, 4, 9}) {
        at::Tensor state = at("state").clone();
        std::vector<at::Tensor> y;
        for (int64_t first = 0; first < x.size(0); first += piece) {
          const int64_t count = std::min(piece, x.size(0) - first);
          y.push_back(convolve(x.narrow(0, first, count), weight, state));
          ASSERT_EQ(state.sizes(), at("state").sizes());
          const at::Tensor inputs = at::cat({at("state"), x.narrow(0, 0, first + count).t()}, 1);
          EXPECT_TRUE(at::equal(state, inputs.narrow(1, first + count, 3))) << piece;
          EXPECT_EQ(state.storage().nbytes(), state.nbytes()) << "a state keeps nothing else alive";
        }
        EXPECT_LT(relative_error(at::cat(y), at("y")), tolerance) << name << ", by " << piece;
      }
    }
  }
}

TEST_F(GatedDeltaNetParts, GatedNormIsItsTwin) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : {16, 40, 128}) {
      const at::Tensor x = (at::randn({5, 3, size}) * 4).to(dtype);
      const at::Tensor gate = (at::randn({5, 7 * size}) * 4).to(dtype).narrow(1, size, 3 * size);
      const at::Tensor weight = at::rand({size}).to(dtype) + 0.5;
      const at::Tensor gates = gate.view({5, 3, size});
      const at::Tensor twin = rms_norm_gated_reference(x, gates, weight, 1e-5);
      const at::Tensor out = rms_norm_gated(x, gates, weight, 1e-5);
      ASSERT_EQ(out.scalar_type(), dtype);
      EXPECT_LT(relative_error(out, twin), dtype == at::kFloat ? 1e-6 : 2 * kBf16Rounding);
      EXPECT_LT((out != twin).to(at::kFloat).mean().item<double>(), dtype == at::kFloat ? 1 : 0.02);
    }
  }
}

TEST_F(GatedDeltaNetParts, FarGatesStayFinite) {
  const at::Tensor gate = at::tensor({-1e30F, -100.0F, -88.0F, 0.0F, 88.0F, 1e30F}).repeat(8);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor gates = gate.to(dtype).view({1, 1, 48});
    const at::Tensor ones = at::ones_like(gates);
    const at::Tensor weight = at::ones({48}, dtype);
    const at::Tensor twin = rms_norm_gated_reference(ones, gates, weight, 1e-5);
    EXPECT_LT(relative_error(rms_norm_gated(ones, gates, weight, 1e-5), twin), kBf16Rounding);
  }
}

}  // namespace
}  // namespace meshnet
