#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

/// Loops over float32 in GCC's vector types, written once and compiled for each instruction set:
/// the widest that the processor has runs. Only for files of kernels/, which are compiled with
/// -Wno-psabi, since what takes or returns a vector is always inlined.
namespace meshnet::simd {

#define MESHNET_INLINE [[gnu::always_inline]] inline

/// Vectors of `kBytes` bytes: 64 with AVX-512, 32 with AVX2, else 16.
template <int kBytes>
struct Vector {
  typedef float Floats __attribute__((vector_size(kBytes)));
  typedef uint32_t Words __attribute__((vector_size(kBytes)));
  typedef uint16_t Halves __attribute__((vector_size(kBytes / 2)));
  static constexpr int64_t kLanes = kBytes / 4;
};

constexpr int64_t kMostLanes = 16;

template <int kBytes>
using Floats = Vector<kBytes>::Floats;

template <int kBytes>
MESHNET_INLINE Floats<kBytes> load(const float* from) {
  Floats<kBytes> values;
  std::memcpy(&values, from, kBytes);
  return values;
}

template <int kBytes>
MESHNET_INLINE Floats<kBytes> load(const c10::BFloat16* from) {
  typename Vector<kBytes>::Halves bits;
  std::memcpy(&bits, from, kBytes / 2);
  return (Floats<kBytes>)(__builtin_convertvector(bits, typename Vector<kBytes>::Words) << 16);
}

template <int kBytes>
MESHNET_INLINE void store(float* to, Floats<kBytes> values) {
  std::memcpy(to, &values, kBytes);
}

/// float32 values as bfloat16 in the upper half of each word: to nearest, ties to even.
template <int kBytes>
MESHNET_INLINE Vector<kBytes>::Words rounded_bits(Floats<kBytes> values) {
  using Words = Vector<kBytes>::Words;
  const Words bits = (Words)values;
  const Words rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return values == values ? rounded : bits | 0x400000;  // NaN stays one
}

template <int kBytes>
MESHNET_INLINE void store(c10::BFloat16* to, Floats<kBytes> values) {
  const auto halves =
      __builtin_convertvector(rounded_bits<kBytes>(values) >> 16, typename Vector<kBytes>::Halves);
  std::memcpy(to, &halves, kBytes / 2);
}

/// What is left of the values once they have passed through T.
template <int kBytes, typename T>
MESHNET_INLINE Floats<kBytes> through(Floats<kBytes> values) {
  if constexpr (std::is_same_v<T, float>) {
    return values;
  } else {
    return (Floats<kBytes>)(rounded_bits<kBytes>(values) & 0xFFFF0000);
  }
}

/// `size` numbers to float32, or back: any size.
template <int kBytes, typename From, typename To>
MESHNET_INLINE void convert(const From* from, To* to, int64_t size) {
  constexpr int64_t lanes = Vector<kBytes>::kLanes;
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) store<kBytes>(to + i, load<kBytes>(from + i));
  for (; i < size; ++i) to[i] = static_cast<To>(from[i]);
}

template <int kBytes>
MESHNET_INLINE float sum(Floats<kBytes> values) {
  float total = 0;
  for (int64_t lane = 0; lane < Vector<kBytes>::kLanes; ++lane) total += values[lane];
  return total;
}

/// e^x: Cephes' expf. Below -87 and above 88 it stays what it is there.
template <int kBytes>
MESHNET_INLINE Floats<kBytes> exponential(Floats<kBytes> x) {
  using Words = Vector<kBytes>::Words;
  const Floats<kBytes> zero = {};
  x = x < -87.0F ? zero - 87.0F : x;
  x = x > 88.0F ? zero + 88.0F : x;
  constexpr float magic = 12582912.0F;  // 1.5 · 2^23: adding it rounds to a whole number
  const Floats<kBytes> shifted = x * 1.44269504F + magic;
  const Floats<kBytes> n = shifted - magic;
  const Floats<kBytes> r = x - n * 0.693359375F + n * 2.12194440e-4F;  // x - n ln 2, in two parts
  Floats<kBytes> p = zero + 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return (Floats<kBytes>)((Words)p + (((Words)shifted - 0x4B400000U) << 23));  // p · 2^n
}

/// x / (1 + e^-x)
template <int kBytes>
MESHNET_INLINE Floats<kBytes> silu(Floats<kBytes> x) {
  return x / (1.0F + exponential<kBytes>(-x));
}

/// The vector type that LibTorch has found this processor fit for (or that ATEN_CPU_CAPABILITY
/// holds it to), in bytes.
int vector_bytes();

#ifdef __x86_64__
template <typename Body, typename... Arguments>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))) void run_avx512(
    const Arguments&... arguments) {
  Body::template run<64>(arguments...);
}

template <typename Body, typename... Arguments>
__attribute__((target("avx2,fma"))) void run_avx2(const Arguments&... arguments) {
  Body::template run<32>(arguments...);
}
#endif

/// Body::run<kBytes>(arguments...), which must be MESHNET_INLINE.
template <typename Body, typename... Arguments>
void run(const Arguments&... arguments) {
#ifdef __x86_64__
  if (vector_bytes() == 64) return run_avx512<Body>(arguments...);
  if (vector_bytes() == 32) return run_avx2<Body>(arguments...);
#endif
  Body::template run<16>(arguments...);
}

}  // namespace meshnet::simd
