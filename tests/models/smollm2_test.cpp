// The real SmolLM2 against transformers.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "models/slice.h"
#include "support.h"

namespace meshnet {
namespace {

constexpr int64_t kPrompts = 8;
constexpr int64_t kSteps = 12;  // stateless: each one is a whole prefill

class SmolLM2 : public testing::Test {
 protected:
  SmolLM2()
      : dir_(path_from_environment("MESHNET_SMOLLM2_DIR")),
        golden_(read_safetensors(path_from_environment("MESHNET_SMOLLM2_GOLDEN") /
                                 "golden.safetensors")) {
    if (!std::filesystem::exists(dir_ / "config.json")) {
      throw std::runtime_error(dir_.string() + ": no model: run scripts/prepare-model smollm2");
    }
  }
  at::Tensor golden(const std::string& name, int64_t prompt) const {
    return golden_.at(name + "." + std::to_string(prompt));
  }
  /// Logits [vocab] of the token after `ids`.
  static at::Tensor next_logits(const std::vector<const ModelSlice*>& route,
                                const at::Tensor& ids) {
    at::Tensor hidden_states = route.front()->embed(ids);
    for (const ModelSlice* slice : route) {
      hidden_states = slice->forward(hidden_states, {{0, ids.size(0), 0}}, slice->layers().first);
    }
    return route.back()->logits(hidden_states.narrow(0, ids.size(0) - 1, 1))[0];
  }

  std::filesystem::path dir_;

 private:
  c10::InferenceMode no_gradients_;
  Tensors golden_;
};

/// No further from bfloat16 as transformers computes it than that is, for the worst of the prompts,
/// from float32: where an operation sums in another order, some values are rounded the other way.
TEST_F(SmolLM2, FirstLogitsInBfloat16AreThoseOfTransformers) {
  double apart = 0;
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt) {
    apart = std::max(
        apart, relative_error(golden("logits_bfloat16", prompt), golden("logits_float32", prompt)));
  }
  const ModelSlice whole = load_whole(dir_, at::kBFloat16);
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt) {
    const at::Tensor logits = next_logits({&whole}, golden("prompt_ids", prompt));
    const double error = relative_error(logits, golden("logits_bfloat16", prompt));
    std::cout << "prompt " << prompt << ": " << error << " from bfloat16, "
              << relative_error(logits, golden("logits_float32", prompt)) << " from float32 ("
              << relative_error(golden("logits_bfloat16", prompt), golden("logits_float32", prompt))
              << " between those two)\n";
    EXPECT_LT(error, apart) << "prompt " << prompt;
  }
}

TEST_F(SmolLM2, FirstLogitsInFloat32AreThoseOfTransformers) {
  const ModelSlice whole = load_whole(dir_, at::kFloat);
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt) {
    const at::Tensor logits = next_logits({&whole}, golden("prompt_ids", prompt));
    EXPECT_LT(relative_error(logits, golden("logits_float32", prompt)), 1e-4) << prompt;
  }
}

TEST_F(SmolLM2, ChoosesTheTokensOfTransformersInFloat32) {
  const ModelSlice whole = load_whole(dir_, at::kFloat);
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt) {
    at::Tensor ids = golden("prompt_ids", prompt);
    const at::Tensor expected = golden("greedy_ids", prompt);
    const int64_t steps = ids.size(0) > 100 ? 1 : std::min(kSteps, expected.size(0));
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor next = next_logits({&whole}, ids).argmax();
      ASSERT_EQ(next.item<int64_t>(), expected[step].item<int64_t>())
          << "prompt " << prompt << " step " << step;
      ids = at::cat({ids, next.unsqueeze(0)});
    }
  }
}

TEST_F(SmolLM2, SplitsAgreeBitForBitInBfloat16) {
  const ModelSlice whole = load_whole(dir_, at::kBFloat16);
  std::vector<at::Tensor> expected;
  for (int64_t prompt = 0; prompt < kPrompts; ++prompt) {
    expected.push_back(next_logits({&whole}, golden("prompt_ids", prompt)));
  }
  const auto expect_equal = [&](const std::vector<LayerRange>& ranges) {
    std::vector<ModelSlice> slices;
    for (const LayerRange range : ranges) slices.push_back(load_slice(dir_, range, at::kBFloat16));
    std::vector<const ModelSlice*> route;
    for (const ModelSlice& slice : slices) route.push_back(&slice);
    for (std::size_t prompt = 0; prompt < expected.size(); ++prompt) {
      const auto ids = golden("prompt_ids", static_cast<int64_t>(prompt));
      EXPECT_TRUE(at::equal(next_logits(route, ids), expected[prompt]))
          << "prompt " << prompt << " on " << ranges.size() << " slices from layer "
          << ranges[1].first;
    }
  };
  for (const int64_t cut : {1, 15, 29}) expect_equal({{0, cut}, {cut, 30}});
  expect_equal({{0, 10}, {10, 20}, {20, 30}});
}

}  // namespace
}  // namespace meshnet
