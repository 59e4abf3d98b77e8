#pragma once

// Hidden states for the tests of the wire format.

#include <gtest/gtest.h>

#include <string>

#include "net/wire.h"

namespace meshnet {

inline constexpr int64_t kHidden = 4;
inline const WireDefaults kDefaults{Dtype::kFloat32, kHidden, 100};

inline std::string zeros(int64_t tokens, Dtype dtype = Dtype::kFloat32) {
  return std::string(static_cast<std::size_t>(tokens * kHidden) * size_of(dtype), '\0');
}

inline HiddenStates hidden_states(int64_t tokens, Dtype dtype = Dtype::kFloat32) {
  return {dtype, tokens, kHidden, zeros(tokens, dtype)};
}

inline void expect_same(const HiddenStates& a, const HiddenStates& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.bytes, b.bytes);
}

}  // namespace meshnet
