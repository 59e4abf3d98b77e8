#include "cache/recipe.h"

#include <gmock/gmock.h>

#include <functional>
#include <stdexcept>

#include "support.h"

namespace meshnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::ThrowsMessage;

RecipeFields fields() {
  return {.architecture = "llama",
          .num_attention_heads = 4,
          .head_dim = 2,
          .layers = {kFull, kSliding, kRecurrent},
          .dtype = at::kBFloat16,
          .owned = {1, 3}};
}

Recipe changed(const std::function<void(RecipeFields&)>& change) {
  RecipeFields changed_fields = fields();
  change(changed_fields);
  return Recipe(changed_fields);
}

TEST(RecipeTest, CertifiedAreLlamaAndQwen2UnderBothNames) {
  for (const auto* name : {"llama", "LlamaForCausalLM", "qwen2", "Qwen2ForCausalLM"}) {
    EXPECT_TRUE(Recipe::is_certified(name)) << name;
    EXPECT_NO_THROW(changed([&](auto& f) { f.architecture = name; })) << name;
  }
  EXPECT_EQ(Recipe::canonical("LlamaForCausalLM"), "llama");
  EXPECT_EQ(Recipe::canonical("llama"), "llama");
  EXPECT_EQ(Recipe::canonical("Qwen2ForCausalLM"), "qwen2");
  EXPECT_EQ(Recipe::canonical("MambaForCausalLM"), "MambaForCausalLM");
}

TEST(RecipeTest, OthersThrowAndNameTheList) {
  for (const auto* name : {"mamba", "LLAMA", "llama2", ""}) {
    EXPECT_FALSE(Recipe::is_certified(name)) << name;
    EXPECT_THAT([&] { changed([&](auto& f) { f.architecture = name; }); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr(name), HasSubstr("llama"), HasSubstr("qwen2"))));
  }
}

TEST(RecipeTest, OwnedLayersMustBeInTheModel) {
  for (const LayerRange owned : {LayerRange{-1, 2}, {0, 4}, {1, 1}, {2, 1}, {3, 4}}) {
    EXPECT_THROW(changed([&](auto& f) { f.owned = owned; }), std::invalid_argument)
        << owned.first << " " << owned.last;
  }
}

TEST(RecipeTest, FingerprintIsOneForBothNamesAndAllHonestNodes) {
  const Recipe recipe(fields());
  EXPECT_THAT(recipe.fingerprint(), MatchesRegex("[0-9a-f]{16}"));
  const Recipe other = changed([](auto& f) {
    f.architecture = "LlamaForCausalLM";
    f.dtype = at::kFloat;
    f.owned = {0, 1};
  });
  EXPECT_EQ(recipe.fingerprint(), other.fingerprint());
  EXPECT_EQ(other.architecture(), "llama");
}

// The value itself: nodes of different versions compare it. FNV-1a 64 of
// "llama\nheads 4 2\nkv 1 2\nsliding_kv 1 2 8\nrecurrent 6 4 2 3 5\n", computed apart.
TEST(RecipeTest, FingerprintDoesNotChangeBetweenVersions) {
  EXPECT_EQ(Recipe(fields()).fingerprint(), "8ce51ca15e7a8e46");
}

TEST(RecipeTest, FingerprintTellsEveryValueApart) {
  const std::vector<std::function<void(RecipeFields&)>> changes{
      [](auto& f) { f.architecture = "qwen2"; },
      [](auto& f) { f.num_attention_heads = 8; },
      [](auto& f) { f.head_dim = 4; },
      [](auto& f) { f.layers.push_back(kFull); },
      [](auto& f) { std::swap(f.layers[0], f.layers[1]); },
      [](auto& f) { f.layers[0] = KvGeometry{2, 2}; },
      [](auto& f) { f.layers[0] = KvGeometry{1, 4}; },
      [](auto& f) { f.layers[1] = SlidingKvGeometry{2, 2, 8}; },
      [](auto& f) { f.layers[1] = SlidingKvGeometry{1, 4, 8}; },
      [](auto& f) { f.layers[1] = SlidingKvGeometry{1, 2, 9}; },
      [](auto& f) { std::get<2>(f.layers[2]).conv_dim = 7; },
      [](auto& f) { std::get<2>(f.layers[2]).conv_kernel_size = 5; },
      [](auto& f) { std::get<2>(f.layers[2]).num_v_heads = 4; },
      [](auto& f) { std::get<2>(f.layers[2]).head_k_dim = 4; },
      [](auto& f) { std::get<2>(f.layers[2]).head_v_dim = 4; },
  };
  const Recipe recipe(fields());
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Recipe other = changed(changes[i]);
    EXPECT_NE(recipe.fingerprint(), other.fingerprint()) << i;
    EXPECT_FALSE(recipe.is_compatible(other)) << i;
  }
}

TEST(RecipeTest, CompatibleMeansDtypeAndRangeToo) {
  const Recipe recipe(fields());
  EXPECT_TRUE(recipe.is_compatible(changed([](auto& f) { f.architecture = "LlamaForCausalLM"; })));
  EXPECT_FALSE(recipe.is_compatible(changed([](auto& f) { f.dtype = at::kHalf; })));
  EXPECT_FALSE(recipe.is_compatible(changed([](auto& f) { f.owned = {0, 3}; })));
}

TEST(RecipeTest, BytesAreOfTheLayersFromTheStartOn) {
  const Recipe recipe = changed([](auto& f) {
    f.layers = {kFull, kFull, kSliding, kRecurrent, kFull};
    f.owned = {1, 4};
  });
  const int64_t recurrent = 156;  // 6 x 3 in bf16 and 2 x 3 x 5 in float32
  const int64_t token = 8;
  EXPECT_EQ(recipe.bytes_per_token(1), token);
  EXPECT_EQ(recipe.bytes_per_token(2), 0);
  EXPECT_EQ(recipe.fixed_bytes(1), (7 + 256) * token + recurrent);
  EXPECT_EQ(recipe.fixed_bytes(3), recurrent);
  EXPECT_EQ(recipe.nbytes(1, 0), recurrent);
  EXPECT_EQ(recipe.nbytes(1, 10), 256 * token + 256 * token + recurrent);
  EXPECT_EQ(recipe.nbytes(1, 600), 768 * token + 263 * token + recurrent);
  EXPECT_EQ(recipe.nbytes(2, 600), 263 * token + recurrent);
}

TEST(RecipeTest, StartLayerMustBeOwned) {
  const Recipe recipe(fields());
  for (const int64_t start : {0, 3, -1}) {
    EXPECT_THAT([&] { recipe.nbytes(start, 1); },
                ThrowsMessage<std::out_of_range>(HasSubstr("1-2")));
    EXPECT_THROW(recipe.bytes_per_token(start), std::out_of_range);
    EXPECT_THROW(recipe.fixed_bytes(start), std::out_of_range);
    EXPECT_THROW(recipe.make_cache(start, at::kCPU), std::out_of_range);
  }
}

TEST(RecipeTest, MakesTheStateOfItsLayers) {
  SliceCache cache = Recipe(fields()).make_cache(1, at::kCPU);
  EXPECT_EQ(cache.layers(), (LayerRange{1, 3}));
  EXPECT_EQ(cache.length(), 0);
  EXPECT_TRUE(std::holds_alternative<SlidingKvCache>(cache.at(1)));
  EXPECT_EQ(std::get<RecurrentCache>(cache.at(2)).conv_state.scalar_type(), at::kBFloat16);
  EXPECT_EQ(std::get<RecurrentCache>(cache.at(2)).delta_state.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace meshnet
