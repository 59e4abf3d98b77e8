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

SlidingKvGeometry sliding_geometry(int64_t window) {
  return {.num_key_value_heads = kHeads, .head_dim = kHeadDim, .sliding_window = window};
}

SlidingKvCache make_sliding(int64_t window) {
  return SlidingKvCache(sliding_geometry(window), at::kFloat, at::kCPU);
}

/// All that rows [first, last) may see under a window: by definition, not by any cache.
Tokens visible(const Tokens& tokens, int64_t window, int64_t first, int64_t last) {
  return tokens.slice(std::max<int64_t>(first - (window - 1), 0), last);
}

TEST(SlidingKvCacheTest, ShowsTheWindowWhateverTheChunks) {
  at::manual_seed(0);
  std::mt19937 random = seeded(2);
  for (const int64_t window : {1, 2, 8, 100, 256, 257, 300, 2000}) {
    for (int round = 0; round < 6; ++round) {
      const Tokens tokens(2500);
      SlidingKvCache cache = make_sliding(window);
      while (cache.length() < 2500) {
        const int64_t first = cache.length();
        const int64_t last = std::min<int64_t>(first + random_rows(random), 2500);
        const Tokens rows = tokens.slice(first, last);
        expect_holds(cache.append(rows.key, rows.value), visible(tokens, window, first, last));
        ASSERT_EQ(cache.length(), last);
        ASSERT_EQ(cache.nbytes(), nbytes(sliding_geometry(window), at::kFloat, last))
            << "window " << window << " rows " << last - first << " tokens " << last;
      }
    }
  }
}

/// Attention of the newest `rows` queries with positions [first, first + rows) over keys whose
/// first stands at `key_position`; a query sees itself and window - 1 tokens before.
at::Tensor attend(const at::Tensor& queries,
                  const at::Tensor& key,
                  const at::Tensor& value,
                  int64_t first,
                  int64_t key_position,
                  int64_t window) {
  const at::Tensor query_at = at::arange(first, first + queries.size(1)).unsqueeze(1);
  const at::Tensor key_at = at::arange(key_position, key_position + key.size(1)).unsqueeze(0);
  const at::Tensor hidden = at::logical_or(key_at > query_at, key_at <= query_at - window);
  const at::Tensor scores = at::matmul(queries, key.transpose(1, 2)).masked_fill(hidden, -INFINITY);
  return at::matmul(at::softmax(scores, -1), value);
}

TEST(SlidingKvCacheTest, AttentionOverItIsAttentionWithAWindow) {
  at::manual_seed(0);
  std::mt19937 random = seeded(3);
  for (const int64_t window : {1, 8, 300}) {
    const Tokens tokens(1200);
    const at::Tensor queries = at::randn({kHeads, 1200, kHeadDim});
    const at::Tensor whole =
        attend(queries, tokens.key.transpose(0, 1), tokens.value.transpose(0, 1), 0, 0, window);
    SlidingKvCache cache = make_sliding(window);
    while (cache.length() < 1200) {
      const int64_t first = cache.length();
      const int64_t last = std::min<int64_t>(first + random_rows(random), 1200);
      const Tokens rows = tokens.slice(first, last);
      const KeyValue seen = cache.append(rows.key, rows.value);
      const at::Tensor part = attend(queries.narrow(1, first, last - first),
                                     seen.key,
                                     seen.value,
                                     first,
                                     last - seen.key.size(1),
                                     window);
      ASSERT_TRUE(at::allclose(part, whole.narrow(1, first, last - first), 1e-5, 1e-6));
    }
  }
}

TEST(SlidingKvCacheTest, NeverLargerThanItsFixedBytes) {
  for (const int64_t window : {1, 8, 300, 600}) {
    const LayerGeometry geometry = sliding_geometry(window);
    const int64_t most = fixed_bytes(geometry, at::kFloat);
    EXPECT_EQ(most, (window - 1 + 256) * 2 * kHeads * kHeadDim * 4);
    EXPECT_EQ(bytes_per_token(geometry, at::kFloat), 0);
    EXPECT_EQ(nbytes(geometry, at::kFloat, 0), 0);
    EXPECT_EQ(nbytes(geometry, at::kFloat, 1'000'000), most);
  }
  EXPECT_THROW(make_sliding(0), std::invalid_argument);
}

TEST(SlidingKvCacheTest, TruncatesAsIfTheTailHadNeverBeenOrSaysItCannot) {
  at::manual_seed(0);
  std::mt19937 random = seeded(4);
  int honoured = 0;
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    const int64_t window = 1 + static_cast<int64_t>(random() % 300);
    const Tokens tokens(1500);
    const Tokens others(1500);
    SlidingKvCache cache = make_sliding(window);
    const int64_t end = 1 + static_cast<int64_t>(random() % 900);
    while (cache.length() < end) {
      const int64_t first = cache.length();
      const Tokens rows = tokens.slice(first, std::min(first + random_rows(random), end));
      cache.append(rows.key, rows.value);
    }
    const int64_t length = std::max<int64_t>(end - static_cast<int64_t>(random() % 300), 0);
    const int64_t bytes = cache.nbytes();
    const bool possible = cache.can_truncate(length);
    ASSERT_EQ(cache.truncate(length), possible);
    EXPECT_EQ(cache.nbytes(), bytes);
    ASSERT_EQ(cache.length(), possible ? length : end);
    ++(possible ? honoured : refused);

    // Either way it goes on as the sequence that it says it holds, with other tokens behind.
    Tokens expected(0);
    const Tokens kept = tokens.slice(0, cache.length());
    expected.key = at::cat({kept.key, others.key});
    expected.value = at::cat({kept.value, others.value});
    for (int step = 0; step < 12; ++step) {
      const int64_t first = cache.length();
      const int64_t last = first + (step % 4 == 3 ? 40 : 1);
      const Tokens rows = expected.slice(first, last);
      expect_holds(cache.append(rows.key, rows.value), visible(expected, window, first, last));
    }
  }
  EXPECT_GT(honoured, 50);
  EXPECT_GT(refused, 50);
}

TEST(SlidingKvCacheTest, TruncateOfWhatWasLostIsRefused) {
  const Tokens tokens(300);
  SlidingKvCache cache = make_sliding(8);
  cache.append(tokens.key, tokens.value);  // past the capacity of 263: only the last 7 are kept
  EXPECT_FALSE(cache.truncate(299));
  EXPECT_EQ(cache.length(), 300);
  EXPECT_TRUE(cache.truncate(300));
  EXPECT_THROW(cache.truncate(301), std::invalid_argument);
  EXPECT_THROW(cache.truncate(-1), std::invalid_argument);
  EXPECT_TRUE(cache.truncate(0));  // needs nothing
  EXPECT_EQ(cache.length(), 0);
  const Tokens rows = tokens.slice(0, 5);
  expect_holds(cache.append(rows.key, rows.value), rows);
}

// B10: prefill 20, truncate to 15, decode 10 on a window that has long been passed.
TEST(SlidingKvCacheTest, PrefillTruncateDecodeIsAFreshPrefill) {
  at::manual_seed(0);
  const Tokens tokens(20);
  const Tokens decoded(10);
  SlidingKvCache cache = make_sliding(8);
  SlidingKvCache fresh = make_sliding(8);
  cache.append(tokens.key, tokens.value);
  ASSERT_TRUE(cache.truncate(15));
  const Tokens prompt = tokens.slice(0, 15);
  fresh.append(prompt.key, prompt.value);
  for (int64_t step = 0; step < 10; ++step) {
    const Tokens row = decoded.slice(step, step + 1);
    const KeyValue got = cache.append(row.key, row.value);
    const KeyValue expected = fresh.append(row.key, row.value);
    EXPECT_EQ(got.key.size(1), 8);
    EXPECT_TRUE(at::equal(got.key, expected.key)) << step;
    EXPECT_TRUE(at::equal(got.value, expected.value)) << step;
  }
}

}  // namespace
}  // namespace meshnet
