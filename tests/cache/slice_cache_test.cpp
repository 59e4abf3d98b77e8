#include "cache/slice_cache.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <random>
#include <stdexcept>

#include "support.h"

namespace meshnet {
namespace {

TEST(LayerCacheTest, IsOfTheKindThatTheGeometryNames) {
  const auto make = [](const LayerGeometry& geometry) {
    return make_layer_cache(geometry, at::kBFloat16, at::kCPU);
  };
  EXPECT_TRUE(std::holds_alternative<KvCache>(make(kFull)));
  EXPECT_TRUE(std::holds_alternative<SlidingKvCache>(make(kSliding)));
  EXPECT_TRUE(std::holds_alternative<RecurrentCache>(make(kRecurrent)));
}

// B01: the conv state is kernel - 1 wide and zero before the first token.
TEST(LayerCacheTest, RecurrentStateStartsAsZerosOfFullSize) {
  const LayerCache cache = make_layer_cache(kRecurrent, at::kBFloat16, at::kCPU);
  const auto& recurrent = std::get<RecurrentCache>(cache);
  EXPECT_TRUE(at::equal(recurrent.conv_state, at::zeros({6, 3}, at::kBFloat16)));
  EXPECT_TRUE(at::equal(recurrent.delta_state, at::zeros({2, 3, 5})));
  EXPECT_EQ(nbytes(cache), 6 * 3 * 2 + 2 * 3 * 5 * 4);
  EXPECT_EQ(nbytes(cache), nbytes(LayerGeometry(kRecurrent), at::kBFloat16, 0));
  EXPECT_EQ(nbytes(cache), nbytes(LayerGeometry(kRecurrent), at::kBFloat16, 1000));
  EXPECT_EQ(nbytes(cache), fixed_bytes(kRecurrent, at::kBFloat16));
  EXPECT_EQ(bytes_per_token(kRecurrent, at::kBFloat16), 0);
}

TEST(LayerCacheTest, RecurrentStateRewindsToTheStartOnly) {
  LayerCache cache = make_layer_cache(kRecurrent, at::kFloat, at::kCPU);
  auto& recurrent = std::get<RecurrentCache>(cache);
  {
    const c10::InferenceMode inference;  // as a step makes it
    recurrent.conv_state = at::ones({6, 3});
    recurrent.delta_state = at::ones({2, 3, 5});
  }
  EXPECT_TRUE(can_truncate(cache, 9, 9));
  EXPECT_TRUE(can_truncate(cache, 9, 0));
  EXPECT_FALSE(can_truncate(cache, 9, 8));
  truncate(cache, 9);
  EXPECT_TRUE(at::equal(recurrent.conv_state, at::ones({6, 3})));
  truncate(cache, 0);
  EXPECT_TRUE(at::equal(recurrent.conv_state, at::zeros({6, 3})));
  EXPECT_TRUE(at::equal(recurrent.delta_state, at::zeros({2, 3, 5})));
}

TEST(SliceCacheTest, IsAddressedByAbsoluteLayer) {
  std::vector<LayerCache> caches;
  caches.push_back(make_layer_cache(kFull, at::kFloat, at::kCPU));
  caches.push_back(make_layer_cache(kSliding, at::kFloat, at::kCPU));
  SliceCache cache({21, 23}, std::move(caches));
  EXPECT_EQ(cache.layers(), (LayerRange{21, 23}));
  EXPECT_TRUE(std::holds_alternative<KvCache>(cache.at(21)));
  EXPECT_TRUE(std::holds_alternative<SlidingKvCache>(cache.at(22)));
  EXPECT_THROW(cache.at(20), std::out_of_range);
  EXPECT_THROW(cache.at(0), std::out_of_range);
  EXPECT_THROW(cache.at(23), std::out_of_range);
  EXPECT_THROW(SliceCache({21, 23}, {}), std::invalid_argument);
}

TEST(SliceCacheTest, TruncatesEveryLayerOrNone) {
  SliceCache attention = recipe_of({kFull, kSliding, kFull}).make_cache(0, at::kCPU);
  take_up(attention, 20);
  EXPECT_TRUE(attention.truncate(15));
  EXPECT_EQ(attention.length(), 15);
  EXPECT_EQ(std::get<KvCache>(attention.at(0)).length(), 15);
  EXPECT_EQ(std::get<SlidingKvCache>(attention.at(1)).length(), 15);
  EXPECT_EQ(std::get<KvCache>(attention.at(2)).length(), 15);
  EXPECT_THROW(attention.truncate(16), std::invalid_argument);
  EXPECT_THROW(attention.truncate(-1), std::invalid_argument);

  SliceCache hybrid = recipe_of({kFull, kRecurrent}).make_cache(0, at::kCPU);
  take_up(hybrid, 20);
  EXPECT_FALSE(hybrid.truncate(15));
  EXPECT_EQ(hybrid.length(), 20);
  EXPECT_EQ(std::get<KvCache>(hybrid.at(0)).length(), 20);
  EXPECT_TRUE(hybrid.truncate(0));
  EXPECT_EQ(std::get<KvCache>(hybrid.at(0)).length(), 0);

  SliceCache wrapped = recipe_of({kFull, kSliding}).make_cache(0, at::kCPU);
  take_up(wrapped, 1000);
  EXPECT_FALSE(wrapped.truncate(990));
  EXPECT_EQ(std::get<KvCache>(wrapped.at(0)).length(), 1000);
}

TEST(SliceCacheTest, CostsWhatTheRecipeSays) {
  const Recipe recipe = recipe_of({kFull, kSliding, kRecurrent, kFull});
  std::mt19937 random = seeded(5);
  for (int round = 0; round < 30; ++round) {
    const auto start = static_cast<int64_t>(random() % 4);
    SliceCache cache = recipe.make_cache(start, at::kCPU);
    EXPECT_EQ(cache.layers(), (LayerRange{start, 4}));
    EXPECT_EQ(cache.nbytes(), recipe.nbytes(start, 0));
    while (cache.length() < 1500) {
      take_up(cache, 1 + static_cast<int64_t>(random() % (random() % 2 ? 400 : 3)));
      ASSERT_EQ(cache.nbytes(), recipe.nbytes(start, cache.length())) << cache.length();
    }
  }
}

}  // namespace
}  // namespace meshnet
