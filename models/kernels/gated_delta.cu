#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>

#include "models/kernels/gated_delta.h"

namespace meshnet {
namespace {

// A warp has 8 columns of one head's state, each in the registers of 4 lanes that lie 8 apart: lane
// = 8 * slice + column. Slice s has the rows s, s + 4, s + 8, ...: what a warp loads at once are 4
// whole sectors of 8 columns.
constexpr int kSlices = 4;
constexpr int kWarpColumns = 8;
constexpr int kWarps = 4;
constexpr int kBlockColumns = kWarps * kWarpColumns;
constexpr int kBatch = 8;  // tokens that lie in shared memory at once
constexpr unsigned kAllLanes = 0xFFFFFFFF;

template <typename T>
struct Operands {
  const T* query;
  const T* key;
  const T* value;
  const float* g;
  const float* beta;
  float* state;
  T* out;
  int64_t query_stride, key_stride, value_stride;  // from token to token
  int64_t tokens;
  int num_v_heads, group, head_k_dim, head_v_dim;
};

// A batch of tokens of one k head, normalised; rows past head_k_dim are 0.
template <int kDepth>
struct Batch {
  float key[kBatch][kDepth];
  float query[kBatch][kDepth];
  float query_key[kBatch];  // query · key
  float decay[kBatch];
  float beta[kBatch];
};

__device__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// One token by one warp.
template <int kDepth, typename T>
__device__ void load_token(
    const Operands<T>& s, Batch<kDepth>& batch, int64_t token, int head, int slot) {
  const int lane = threadIdx.x % 32;
  const int64_t offset = static_cast<int64_t>(head / s.group) * s.head_k_dim;
  const T* key = s.key + token * s.key_stride + offset;
  const T* query = s.query + token * s.query_stride + offset;
  float key_key = 0;
  float query_query = 0;
  float query_key = 0;
  for (int k = lane; k < s.head_k_dim; k += 32) {
    const float x = static_cast<float>(key[k]);
    const float y = static_cast<float>(query[k]);
    key_key += x * x;
    query_query += y * y;
    query_key += x * y;
  }
  const float key_scale = 1.0F / sqrtf(warp_sum(key_key) + kL2NormEps);
  const float query_scale = 1.0F / sqrtf((warp_sum(query_query) + kL2NormEps) * s.head_k_dim);
  query_key = warp_sum(query_key) * key_scale * query_scale;
  for (int k = lane; k < kDepth; k += 32) {
    batch.key[slot][k] = k < s.head_k_dim ? static_cast<float>(key[k]) * key_scale : 0.0F;
    batch.query[slot][k] = k < s.head_k_dim ? static_cast<float>(query[k]) * query_scale : 0.0F;
  }
  if (lane == 0) {
    batch.query_key[slot] = query_key;
    batch.decay[slot] = expf(s.g[token * s.num_v_heads + head]);
    batch.beta[slot] = s.beta[token * s.num_v_heads + head];
  }
}

// grid [columns / kBlockColumns, num_v_heads]; kDepth is head_k_dim, rounded up.
template <int kDepth, typename T>
__global__ void gated_delta_kernel(Operands<T> s) {
  constexpr int rows = kDepth / kSlices;
  __shared__ Batch<kDepth> batch;
  const int head = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int slice = threadIdx.x % 32 / kWarpColumns;
  const int column = blockIdx.x * kBlockColumns + warp * kWarpColumns + threadIdx.x % kWarpColumns;
  const bool inside = column < s.head_v_dim;  // the others take part in sums and barriers only
  float* state = s.state + static_cast<int64_t>(head) * s.head_k_dim * s.head_v_dim + column;

  float values[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int k = slice + i * kSlices;
    values[i] = inside && k < s.head_k_dim ? state[static_cast<int64_t>(k) * s.head_v_dim] : 0.0F;
  }
  for (int64_t first = 0; first < s.tokens; first += kBatch) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kBatch), s.tokens - first));
    __syncthreads();  // the batch before has been read
    for (int slot = warp; slot < count; slot += kWarps) {
      load_token(s, batch, first + slot, head, slot);
    }
    __syncthreads();
    for (int slot = 0; slot < count; ++slot) {
      const int64_t token = first + slot;
      float kv_mem = 0;
      float out = 0;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        kv_mem += batch.key[slot][slice + i * kSlices] * values[i];
        out += batch.query[slot][slice + i * kSlices] * values[i];
      }
      for (int offset = kWarpColumns; offset < 32; offset *= 2) {
        kv_mem += __shfl_xor_sync(kAllLanes, kv_mem, offset);
        out += __shfl_xor_sync(kAllLanes, out, offset);
      }
      const int64_t at = head * static_cast<int64_t>(s.head_v_dim) + column;
      const float value = inside ? static_cast<float>(s.value[token * s.value_stride + at]) : 0.0F;
      const float decay = batch.decay[slot];
      const float delta = batch.beta[slot] * (value - decay * kv_mem);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        values[i] = decay * values[i] + batch.key[slot][slice + i * kSlices] * delta;
      }
      if (inside && slice == 0) {
        s.out[token * s.num_v_heads * s.head_v_dim + at] =
            static_cast<T>(decay * out + batch.query_key[slot] * delta);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int k = slice + i * kSlices;
    if (inside && k < s.head_k_dim) state[static_cast<int64_t>(k) * s.head_v_dim] = values[i];
  }
}

template <typename T>
void launch(const Operands<T>& s, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((s.head_v_dim + kBlockColumns - 1) / kBlockColumns),
                  static_cast<unsigned>(s.num_v_heads));
  if (s.head_k_dim <= 64) {
    gated_delta_kernel<64><<<grid, kWarps * 32, 0, stream>>>(s);
  } else if (s.head_k_dim <= 128) {
    gated_delta_kernel<128><<<grid, kWarps * 32, 0, stream>>>(s);
  } else {
    gated_delta_kernel<256><<<grid, kWarps * 32, 0, stream>>>(s);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

at::Tensor gated_delta_rule_cuda(const at::Tensor& query,
                                 const at::Tensor& key,
                                 const at::Tensor& value,
                                 const at::Tensor& g,
                                 const at::Tensor& beta,
                                 const at::Tensor& state) {
  TORCH_CHECK(query.size(2) <= 256, "gated_delta_rule_cuda: head_k_dim ", query.size(2), " > 256");
  at::Tensor out = at::empty(value.sizes(), value.options());
  if (out.numel() == 0) return out;

  const c10::cuda::CUDAGuard guard(value.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, value.scalar_type(), "gated_delta_rule", [&] {
        launch(Operands<scalar_t>{query.const_data_ptr<scalar_t>(),
                                  key.const_data_ptr<scalar_t>(),
                                  value.const_data_ptr<scalar_t>(),
                                  g.const_data_ptr<float>(),
                                  beta.const_data_ptr<float>(),
                                  state.mutable_data_ptr<float>(),
                                  out.mutable_data_ptr<scalar_t>(),
                                  query.stride(0),
                                  key.stride(0),
                                  value.stride(0),
                                  value.size(0),
                                  static_cast<int>(value.size(1)),
                                  static_cast<int>(value.size(1) / query.size(1)),
                                  static_cast<int>(query.size(2)),
                                  static_cast<int>(value.size(2))},
               stream);
      });
  return out;
}

}  // namespace meshnet
