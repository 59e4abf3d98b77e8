#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "cache/kv_cache.h"

namespace meshnet {

constexpr int64_t kHeads = 2;
constexpr int64_t kHeadDim = 4;

/// Keys and values of a whole sequence, each [tokens, kHeads, kHeadDim].
struct Tokens {
  at::Tensor key;
  at::Tensor value;

  explicit Tokens(int64_t count)
      : key(at::randn({count, kHeads, kHeadDim})), value(at::randn({count, kHeads, kHeadDim})) {}

  Tokens slice(int64_t first, int64_t last) const {
    Tokens part(0);
    part.key = key.narrow(0, first, last - first);
    part.value = value.narrow(0, first, last - first);
    return part;
  }
};

inline void expect_holds(const KeyValue& got, const Tokens& expected) {
  EXPECT_TRUE(at::equal(got.key, expected.key.transpose(0, 1)));
  EXPECT_TRUE(at::equal(got.value, expected.value.transpose(0, 1)));
  for (const at::Tensor& half : {got.key, got.value}) {
    EXPECT_EQ(half.stride(2), 1);
    EXPECT_EQ(half.stride(1), kHeadDim);
  }
}

/// Mostly decodes, some chunks, now and then one larger than any buffer.
inline int64_t random_rows(std::mt19937& random) {
  const auto draw = random() % 10;
  if (draw < 5) return 1;
  if (draw < 9) return 1 + static_cast<int64_t>(random() % 40);
  return 1 + static_cast<int64_t>(random() % 700);
}

}  // namespace meshnet
