#include "models/kernels/simd.h"

#include <ATen/Version.h>

#include <string>

namespace meshnet::simd {

int vector_bytes() {
  static const int kBytes = [] {
    const std::string capability = at::get_cpu_capability();
    return capability == "AVX512" ? 64 : capability == "AVX2" ? 32 : 16;
  }();
  return kBytes;
}

}  // namespace meshnet::simd
