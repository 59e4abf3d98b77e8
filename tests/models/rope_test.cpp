#include "models/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "support.h"

namespace meshnet {
namespace {

/// Exactly these numbers.
void expect_equal(const at::Tensor& inv_freq, const nlohmann::json& expected) {
  EXPECT_TRUE(at::equal(inv_freq, at::tensor(expected.get<std::vector<float>>())))
      << inv_freq << expected;
}

TEST(Rope, HasTheFrequenciesOfTransformersForEveryTypeAndForm) {
  const std::map<std::string, RopeDefaults> defaults_of{
      {"llama", {}},
      {"qwen3_next", {.partial_rotary_factor = 0.25}},
      {"gemma3_text", {.rope_theta = 1e6, .sliding_rope_theta = 1e4}}};
  const auto cases = read_json(path_from_environment("MESHNET_ROPE_GOLDEN") / "rope.json");
  ASSERT_GT(cases.size(), 40);
  for (const auto& golden : cases) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const JsonReader file(golden.at("config"), "config.json");
    const RopeDefaults& defaults = defaults_of.at(file.string("model_type"));
    const int64_t head_dim = file.integer("head_dim", 1, 256);
    const int64_t max_positions = file.integer("max_position_embeddings", 1, 4096);

    const auto rope = read_rope_parameters(file, defaults, head_dim, max_positions);
    const RotaryFrequencies frequencies = rope_frequencies(rope, head_dim);
    expect_equal(frequencies.inv_freq, golden.at("inv_freq"));
    EXPECT_DOUBLE_EQ(frequencies.attention_scaling, golden.at("attention_scaling").get<double>());

    const auto sliding = read_sliding_rope_parameters(file, defaults, head_dim, max_positions);
    ASSERT_EQ(sliding.has_value(), golden.contains("sliding_inv_freq"));
    if (!sliding) continue;
    expect_equal(rope_frequencies(*sliding, head_dim).inv_freq, golden.at("sliding_inv_freq"));
  }
}

TEST(Rope, RotatesEachPairByPositionTimesFrequency) {
  at::manual_seed(0);
  const RotaryFrequencies frequencies = rope_frequencies({.rope_theta = 100.0}, 4);
  EXPECT_TRUE(at::allclose(frequencies.inv_freq, at::tensor({1.0F, 0.1F})));
  const at::Tensor at_positions = positions({{0, 2, 0}, {2, 1, 7}}, at::kCPU);
  EXPECT_TRUE(at::equal(at_positions, at::tensor({0, 1, 7}, at::kLong)));

  const RotaryEmbedding rotary = rotary_embedding(at_positions, frequencies, at::kFloat);
  const at::Tensor states = at::randn({3, 2, 4});
  const at::Tensor rotated = apply_rotary_pos_emb(states, rotary);
  EXPECT_TRUE(at::equal(rotated[0], states[0]));
  for (const int64_t pair : {0, 1}) {  // elements i and i + rotary_dim / 2
    const double angle = 7 * (pair == 0 ? 1.0 : 0.1);
    const at::Tensor x = states[2].select(1, pair);
    const at::Tensor y = states[2].select(1, pair + 2);
    const at::Tensor expected = x * std::cos(angle) - y * std::sin(angle);
    EXPECT_TRUE(at::allclose(rotated[2].select(1, pair), expected, 1e-5, 1e-6));
  }
}

TEST(Rope, AnglesAreFloat32WhateverTheDtype) {
  // In bf16 neither the position nor the product could be told from its neighbours.
  const RotaryFrequencies frequencies = rope_frequencies({}, 64);
  const at::Tensor at_positions = positions({{0, 2, 8190}}, at::kCPU);
  const RotaryEmbedding rounded = rotary_embedding(at_positions, frequencies, at::kBFloat16);
  const RotaryEmbedding exact = rotary_embedding(at_positions, frequencies, at::kFloat);
  EXPECT_EQ(rounded.cos.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(rounded.cos, exact.cos.to(at::kBFloat16)));
  EXPECT_NEAR(exact.cos[1][0].item<double>(), std::cos(8191.0), 1e-5);
}

TEST(Rope, ScalesCosineAndSineBeforeTheyAreRounded) {
  RotaryFrequencies frequencies = rope_frequencies({}, 64);
  const at::Tensor at_positions = positions({{0, 40, 3}}, at::kCPU);
  const RotaryEmbedding plain = rotary_embedding(at_positions, frequencies, at::kFloat);
  frequencies.attention_scaling = 1.1386;
  const RotaryEmbedding scaled = rotary_embedding(at_positions, frequencies, at::kBFloat16);
  EXPECT_TRUE(at::equal(scaled.cos, (plain.cos * 1.1386).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(scaled.sin, (plain.sin * 1.1386).to(at::kBFloat16)));
}

TEST(Rope, RotatesTheFirstPartOfEachHeadAndPassesTheRestOn) {
  at::manual_seed(0);
  constexpr int64_t kHeadDim = 96;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t dim : {24, 32, 48, 64, 96}) {  // those of 32 take the bfloat16 kernel
      const RopeParameters rope{.partial_rotary_factor = static_cast<double>(dim) / kHeadDim};
      const RotaryFrequencies frequencies = rope_frequencies(rope, kHeadDim);
      ASSERT_EQ(frequencies.inv_freq.sizes(), (at::IntArrayRef{dim / 2}));
      EXPECT_TRUE(at::equal(frequencies.inv_freq, rope_frequencies({}, dim).inv_freq));

      const RotaryEmbedding rotary =
          rotary_embedding(positions({{0, 5, 9}}, at::kCPU), frequencies, dtype);
      const at::Tensor states = at::randn({5, 3, kHeadDim}).to(dtype);
      const at::Tensor part = apply_rotary_pos_emb(states.narrow(2, 0, dim).clone(), rotary);
      const at::Tensor expected = at::cat({part, states.narrow(2, dim, kHeadDim - dim)}, 2);
      EXPECT_TRUE(at::equal(apply_rotary_pos_emb(states, rotary), expected)) << dim;
      EXPECT_TRUE(at::equal(rotate_heads(states, rotary), expected))
          << dim << " " << c10::toString(dtype);
    }
  }
}

}  // namespace
}  // namespace meshnet
