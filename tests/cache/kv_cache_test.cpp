#include "cache/kv_cache.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "cache/layer_cache.h"
#include "kv_tokens.h"
#include "support.h"

namespace meshnet {
namespace {

KvCache make_full(at::ScalarType dtype = at::kFloat) {
  return KvCache({.num_key_value_heads = kHeads, .head_dim = kHeadDim}, dtype, at::kCPU);
}

TEST(KvCacheTest, HoldsWhatWasAppendedWhateverTheChunks) {
  at::manual_seed(0);
  std::mt19937 random = seeded(1);
  for (int round = 0; round < 20; ++round) {
    const Tokens tokens(1500);
    KvCache cache = make_full();
    while (cache.length() < 1500) {
      const int64_t first = cache.length();
      const int64_t last = std::min<int64_t>(first + random_rows(random), 1500);
      const Tokens rows = tokens.slice(first, last);
      expect_holds(cache.append(rows.key, rows.value), tokens.slice(0, last));
    }
  }
}

TEST(KvCacheTest, GrowsInStepsOf256AndNoFurther) {
  const LayerGeometry geometry = KvGeometry{.num_key_value_heads = kHeads, .head_dim = kHeadDim};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const int64_t token = 2 * kHeads * kHeadDim * static_cast<int64_t>(c10::elementSize(dtype));
    EXPECT_EQ(bytes_per_token(geometry, dtype), token);
    EXPECT_EQ(fixed_bytes(geometry, dtype), 0);
    KvCache cache = make_full(dtype);
    EXPECT_EQ(cache.nbytes(), 0);
    for (const auto& [rows, capacity] :
         {std::pair{1, 256}, {254, 256}, {1, 256}, {1, 512}, {255, 512}, {1, 768}, {1000, 1536}}) {
      cache.extend(rows);
      EXPECT_EQ(cache.nbytes(), capacity * token) << cache.length();
      EXPECT_EQ(nbytes(geometry, dtype, cache.length()), cache.nbytes()) << cache.length();
    }
  }
}

TEST(KvCacheTest, ExtendGivesRoomToFill) {
  at::manual_seed(0);
  const Tokens tokens(260);
  KvCache cache = make_full();
  for (int64_t at = 0; at < 260; at += 130) {
    const KeyValue all = cache.extend(130);
    all.key.narrow(1, at, 130).copy_(tokens.key.narrow(0, at, 130).transpose(0, 1));
    all.value.narrow(1, at, 130).copy_(tokens.value.narrow(0, at, 130).transpose(0, 1));
  }
  expect_holds(cache.extend(0), tokens);
}

TEST(KvCacheTest, ConvertsToItsDtype) {
  const Tokens tokens(3);
  KvCache cache = make_full(at::kBFloat16);
  const KeyValue all = cache.append(tokens.key, tokens.value);
  EXPECT_TRUE(at::equal(all.key, tokens.key.transpose(0, 1).to(at::kBFloat16)));
}

TEST(KvCacheTest, TruncateForgetsTheTailAndKeepsTheMemory) {
  at::manual_seed(0);
  const Tokens tokens(600);
  const Tokens other(100);
  KvCache cache = make_full();
  cache.append(tokens.key, tokens.value);
  const int64_t bytes = cache.nbytes();
  cache.truncate(300);
  EXPECT_EQ(cache.length(), 300);
  EXPECT_EQ(cache.nbytes(), bytes);
  expect_holds(cache.extend(0), tokens.slice(0, 300));

  const KeyValue all = cache.append(other.key, other.value);
  EXPECT_TRUE(at::equal(all.key.narrow(1, 0, 300), tokens.key.narrow(0, 0, 300).transpose(0, 1)));
  EXPECT_TRUE(at::equal(all.key.narrow(1, 300, 100), other.key.transpose(0, 1)));
  EXPECT_EQ(all.key.size(1), 400);
  EXPECT_THROW(cache.truncate(401), std::invalid_argument);
  EXPECT_THROW(cache.truncate(-1), std::invalid_argument);
  EXPECT_EQ(cache.length(), 400);
  cache.truncate(0);
  expect_holds(cache.append(other.key, other.value), other);
}

TEST(KvCacheTest, WrittenInInferenceModeAndGrownOutsideAndBack) {
  const Tokens tokens(1);
  KvCache cache = make_full();
  {
    const c10::InferenceMode inference;
    cache.append(tokens.key, tokens.value);
  }
  cache.truncate(0);
  cache.extend(300);
  const c10::InferenceMode inference;
  cache.append(tokens.key, tokens.value);
  EXPECT_EQ(cache.length(), 301);
}

}  // namespace
}  // namespace meshnet
