#include "models/kernels/bf16_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/kernels/avx512_bf16.h"

#ifdef __x86_64__

namespace meshnet {
namespace {

using c10::BFloat16;
using namespace avx512;

constexpr int64_t kAhead = 4096;  // numbers between a prefetch and its use

/// `a` · `b`. Where `a` is read once a token (a weight), it goes past the caches: what else the
/// node needs for a step, down to the code of the HTTP server, stays in them.
template <bool kReadOnce>
MESHNET_AVX512_BF16 inline float dot(const BFloat16* a, const BFloat16* b, int64_t size) {
  __m512 sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
    if constexpr (kReadOnce) {
      for (int64_t line = 0; line < 4; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(a + i + kAhead + line * kLanes), _MM_HINT_NTA);
      }
    }
    sums[0] = _mm512_dpbf16_ps(sums[0], load(a + i), load(b + i));
    sums[1] = _mm512_dpbf16_ps(sums[1], load(a + i + kLanes), load(b + i + kLanes));
    sums[2] = _mm512_dpbf16_ps(sums[2], load(a + i + 2 * kLanes), load(b + i + 2 * kLanes));
    sums[3] = _mm512_dpbf16_ps(sums[3], load(a + i + 3 * kLanes), load(b + i + 3 * kLanes));
  }
  for (; i < size; i += kLanes) sums[0] = _mm512_dpbf16_ps(sums[0], load(a + i), load(b + i));
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

/// Rows [begin, end) of weight · x, one behind the other: the memory is read as it lies.
MESHNET_AVX512_BF16 void multiply_rows(const BFloat16* weight,
                                       const BFloat16* x,
                                       const BFloat16* bias,
                                       BFloat16* out,
                                       int64_t begin,
                                       int64_t end,
                                       int64_t in_features) {
  for (int64_t row = begin; row < end; ++row) {
    const float sum = dot<true>(weight + row * in_features, x, in_features);
    out[row] = bias == nullptr ? sum : sum + static_cast<float>(bias[row]);
  }
}

MESHNET_AVX512_BF16 void normalise_row(const BFloat16* x,
                                       const BFloat16* weight,
                                       BFloat16* out,
                                       int64_t size,
                                       float eps,
                                       bool zero_centred) {
  const float scale = 1.0F / std::sqrt(dot<false>(x, x, size) / static_cast<float>(size) + eps);
  for (int64_t i = 0; i < size; i += kFloats) {
    __m512 normalised = _mm512_mul_ps(load_floats(x + i), _mm512_set1_ps(scale));
    __m512 factor = load_floats(weight + i);
    if (zero_centred) {
      factor = _mm512_add_ps(factor, _mm512_set1_ps(1.0F));
    } else {
      normalised = rounded(normalised);
    }
    store_floats(out + i, _mm512_mul_ps(normalised, factor));
  }
}

MESHNET_AVX512_BF16 inline __m512 turned(__m512 a, __m512 cos, __m512 b, __m512 sin) {
  return _mm512_add_ps(rounded(_mm512_mul_ps(a, cos)), rounded(_mm512_mul_ps(b, sin)));
}

MESHNET_AVX512_BF16 void rotate_head(BFloat16* x,
                                     const BFloat16* cos,
                                     const BFloat16* sin,
                                     int64_t head_dim) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += kFloats) {
    const __m512 low = load_floats(x + i);
    const __m512 high = load_floats(x + i + half);
    const __m512 minus_high = _mm512_sub_ps(_mm512_set1_ps(-0.0F), high);
    store_floats(x + i, turned(low, load_floats(cos + i), minus_high, load_floats(sin + i)));
    store_floats(x + i + half,
                 turned(high, load_floats(cos + i + half), low, load_floats(sin + i + half)));
  }
}

/// scores [length, rounded up to 16] → e^(score - largest), and their sum.
MESHNET_AVX512_BF16 float exponentiate(float* scores, int64_t length, float largest) {
  const int64_t padded = (length + kFloats - 1) / kFloats * kFloats;
  std::fill(scores + length, scores + padded, -INFINITY);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < padded; i += kFloats) {
    const __m512 weights =
        exp_not_positive(_mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(largest)));
    _mm512_storeu_ps(scores + i, weights);
    sum = _mm512_add_ps(sum, weights);
  }
  return _mm512_reduce_add_ps(sum);
}

/// One query head over all keys and values of head_dim kChunks * 32, `key_stride` and
/// `value_stride` numbers apart. scores [length, rounded up to 16] is room to work in.
template <int kChunks>
MESHNET_AVX512_BF16 void attend_head(const BFloat16* query,
                                     const BFloat16* key,
                                     int64_t key_stride,
                                     const BFloat16* value,
                                     int64_t value_stride,
                                     BFloat16* out,
                                     float* scores,
                                     int64_t length,
                                     float scaling) {
  float largest = -INFINITY;
  for (int64_t i = 0; i < length; ++i) {
    __m512 sum = _mm512_setzero_ps();
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      sum = _mm512_dpbf16_ps(
          sum, load(query + chunk * kLanes), load(key + i * key_stride + chunk * kLanes));
    }
    scores[i] = _mm512_reduce_add_ps(sum) * scaling;
    largest = std::max(largest, scores[i]);
  }
  const __m512 scale = _mm512_set1_ps(1.0F / exponentiate(scores, length, largest));
  __m512 sums[2 * kChunks] = {};
  for (int64_t i = 0; i < length; ++i) {
    const __m512 weight = _mm512_set1_ps(scores[i]);
    for (int part = 0; part < 2 * kChunks; ++part) {
      sums[part] = _mm512_fmadd_ps(
          weight, load_floats(value + i * value_stride + part * kFloats), sums[part]);
    }
  }
  for (int part = 0; part < 2 * kChunks; ++part) {
    store_floats(out + part * kFloats, _mm512_mul_ps(sums[part], scale));
  }
}

/// attend_head for a head_dim; nullptr where there is none.
decltype(&attend_head<1>) attend_head_of(int64_t head_dim) {
  switch (head_dim) {
    case 32:
      return attend_head<1>;
    case 64:
      return attend_head<2>;
    case 96:
      return attend_head<3>;
    case 128:
      return attend_head<4>;
    case 256:
      return attend_head<8>;
    default:
      return nullptr;
  }
}

bool has_instructions() {
  static const bool kHas =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return kHas;
}

}  // namespace

bool takes_bf16_kernels(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && x.device().is_cpu() && x.stride(-1) == 1 &&
         x.size(-1) % kLanes == 0 && has_instructions();
}

at::Tensor linear_row(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t out_features = weight.size(0);
  const int64_t in_features = weight.size(1);
  at::Tensor out = at::empty({1, out_features}, x.options());
  const auto* weight_data = weight.const_data_ptr<BFloat16>();
  const auto* x_data = x.const_data_ptr<BFloat16>();
  const auto* bias_data = bias.defined() ? bias.const_data_ptr<BFloat16>() : nullptr;
  auto* out_data = out.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, out_features, worth_a_thread(in_features), [&](int64_t begin, int64_t end) {
    multiply_rows(weight_data, x_data, bias_data, out_data, begin, end, in_features);
  });
  return out;
}

at::Tensor rms_norm_bf16(const at::Tensor& x,
                         const at::Tensor& weight,
                         double eps,
                         bool zero_centred) {
  const int64_t heads = x.dim() == 3 ? x.size(1) : 1;
  const int64_t head_stride = x.dim() == 3 ? x.stride(1) : 0;
  const int64_t size = x.size(-1);
  at::Tensor out = at::empty(x.sizes(), x.options());
  const auto* x_data = x.const_data_ptr<BFloat16>();
  const auto* weight_data = weight.const_data_ptr<BFloat16>();
  auto* out_data = out.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, x.size(0) * heads, worth_a_thread(size), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      normalise_row(x_data + row / heads * x.stride(0) + row % heads * head_stride,
                    weight_data,
                    out_data + row * size,
                    size,
                    static_cast<float>(eps),
                    zero_centred);
    }
  });
  return out;
}

void rotate_bf16(const at::Tensor& states, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t heads = states.size(1);
  const int64_t head_dim = states.size(2);
  auto* data = states.mutable_data_ptr<BFloat16>();
  const auto* cos_data = cos.const_data_ptr<BFloat16>();
  const auto* sin_data = sin.const_data_ptr<BFloat16>();
  at::parallel_for(
      0, states.size(0), worth_a_thread(heads * head_dim), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
          for (int64_t head = 0; head < heads; ++head) {
            rotate_head(data + token * states.stride(0) + head * states.stride(1),
                        cos_data + token * head_dim,
                        sin_data + token * head_dim,
                        head_dim);
          }
        }
      });
}

bool takes_attend_row(const at::Tensor& query) {
  return query.size(0) == 1 && takes_bf16_kernels(query) &&
         attend_head_of(query.size(2)) != nullptr;
}

at::Tensor attend_row(const at::Tensor& query,
                      const at::Tensor& key,
                      const at::Tensor& value,
                      double scaling) {
  const int64_t heads = query.size(1);
  const int64_t head_dim = query.size(2);
  const int64_t length = key.size(1);
  const int64_t group = heads / key.size(0);
  const auto attend = attend_head_of(head_dim);
  at::Tensor out = at::empty({1, heads * head_dim}, query.options());
  const auto* query_data = query.const_data_ptr<BFloat16>();
  const auto* key_data = key.const_data_ptr<BFloat16>();
  const auto* value_data = value.const_data_ptr<BFloat16>();
  auto* out_data = out.mutable_data_ptr<BFloat16>();
  at::parallel_for(
      0, heads, worth_a_thread(2 * length * head_dim), [&](int64_t begin, int64_t end) {
        std::vector<float> scores(static_cast<std::size_t>(length + kFloats));
        for (int64_t head = begin; head < end; ++head) {
          attend(query_data + head * query.stride(1),
                 key_data + head / group * key.stride(0),
                 key.stride(1),
                 value_data + head / group * value.stride(0),
                 value.stride(1),
                 out_data + head * head_dim,
                 scores.data(),
                 length,
                 static_cast<float>(scaling));
        }
      });
  return out;
}

}  // namespace meshnet

#else  // other processors take the twins

#include <stdexcept>

namespace meshnet {

bool takes_bf16_kernels(const at::Tensor&) { return false; }
bool takes_attend_row(const at::Tensor&) { return false; }

at::Tensor linear_row(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  throw std::logic_error("linear_row: not on this processor");
}
at::Tensor rms_norm_bf16(const at::Tensor&, const at::Tensor&, double, bool) {
  throw std::logic_error("rms_norm_bf16: not on this processor");
}
void rotate_bf16(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  throw std::logic_error("rotate_bf16: not on this processor");
}
at::Tensor attend_row(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) {
  throw std::logic_error("attend_row: not on this processor");
}

}  // namespace meshnet

#endif
