#pragma once

#include <algorithm>
#include <cstdint>

/// How finely the kernels share their work out, for at::parallel_for.
namespace meshnet {

constexpr int64_t kLeastWork = 16384;  ///< numbers that are worth a thread

/// The least items of so many numbers each that are.
inline int64_t worth_a_thread(int64_t numbers_each) {
  return std::max<int64_t>(1, kLeastWork / numbers_each);
}

}  // namespace meshnet
