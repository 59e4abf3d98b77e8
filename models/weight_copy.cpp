#include "models/weight_copy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "models/device_copy.h"
#include "models/float8.h"

namespace meshnet {
namespace {

// Of `into`. Several huge pages, so that two threads seldom fill the same one.
constexpr int64_t kRangeBytes = int64_t{4} << 20;
constexpr int64_t kLeastRangeBytes = int64_t{128} << 10;
// What is read before it is converted: it stays in the processor's cache.
constexpr int64_t kBufferBytes = int64_t{256} << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Reads elements of `stored` from number `first` on into `place`, which is of the stored dtype.
void read_elements(const SafetensorsFile& file,
                   const StoredTensor& stored,
                   int64_t first,
                   const at::Tensor& place) {
  file.read(stored,
            static_cast<std::size_t>(first * place.element_size()),
            {static_cast<std::byte*>(place.mutable_data_ptr()), place.nbytes()});
}

}  // namespace

/// Shares out `count` items, which take `item_bytes` of the place each: work(first, end, buffer)
/// from every thread, for one range after the other, so that a thread which others keep from
/// running holds up little. `buffer` is the thread's own.
template <typename Work>
void WeightCopier::for_each_range(int64_t count, int64_t item_bytes, const Work& work) {
  const int64_t threads = at::get_num_threads();
  const int64_t bytes =
      std::clamp(ceil_div(count * item_bytes, threads), kLeastRangeBytes, kRangeBytes);
  const int64_t in_range = std::max<int64_t>(1, bytes / item_bytes);
  const int64_t ranges = ceil_div(count, in_range);
  buffers_.resize(static_cast<std::size_t>(threads));
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, std::min(ranges, threads), 1, [&](int64_t worker, int64_t) {
    const c10::InferenceMode no_gradients;  // threads do not inherit it
    Buffer& buffer = buffers_[static_cast<std::size_t>(worker)];
    for (int64_t range = next++; range < ranges; range = next++) {
      work(range * in_range, std::min(count, (range + 1) * in_range), buffer);
    }
  });
}

void WeightCopier::copy(const SafetensorsFile& file,
                        const StoredTensor& stored,
                        at::ScalarType stored_dtype,
                        const at::Tensor& into) {
  const at::Tensor flat = into.view(-1);
  if (into.is_cpu() && into.scalar_type() != stored_dtype) {
    return convert(file, stored, stored_dtype, flat);
  }
  for_each_range(flat.numel(), flat.element_size(), [&](int64_t first, int64_t end, Buffer&) {
    const at::Tensor target = flat.narrow(0, first, end - first);
    if (into.is_cpu()) return read_elements(file, stored, first, target);
    const at::Tensor source = empty_on_host({end - first}, stored_dtype, into.device());
    read_elements(file, stored, first, source);
    target.copy_(source.to(into.device()));  // converted there
  });
}

void WeightCopier::convert(const SafetensorsFile& file,
                           const StoredTensor& stored,
                           at::ScalarType stored_dtype,
                           const at::Tensor& flat) {
  const auto at_once = kBufferBytes / static_cast<int64_t>(c10::elementSize(stored_dtype));
  for_each_range(
      flat.numel(), flat.element_size(), [&](int64_t first, int64_t end, Buffer& buffer) {
        buffer.resize(std::max<std::size_t>(buffer.size(), kBufferBytes));
        for (int64_t count = 0; first < end; first += count) {
          count = std::min(at_once, end - first);
          const at::Tensor source = at::from_blob(buffer.data(), {count}, stored_dtype);
          read_elements(file, stored, first, source);
          flat.narrow(0, first, count).copy_(source);
        }
      });
}

void WeightCopier::dequantize(const SafetensorsFile& file,
                              const StoredTensor& stored,
                              Fp8Blocks blocks,
                              const at::Tensor& scales,
                              const at::Tensor& into) {
  const int64_t m = into.size(-2);
  const int64_t n = into.size(-1);
  const int64_t block_rows = blocks.rows == 0 ? m : blocks.rows;
  const int64_t block_columns = blocks.columns == 0 ? n : blocks.columns;
  const at::Tensor scale_rows = scales.view({-1, ceil_div(n, block_columns)});
  const at::Tensor rows = into.view({-1, n});  // of all matrices
  const int64_t at_once = std::max<int64_t>(1, kBufferBytes / n);
  for_each_range(
      rows.size(0), n * into.element_size(), [&](int64_t first, int64_t end, Buffer& buffer) {
        buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(at_once * n)));
        const at::Tensor target = rows.narrow(0, first, end - first);
        const at::Tensor place =
            into.is_cpu() ? target
                          : empty_on_host(target.sizes(), target.scalar_type(), into.device());
        int64_t count = 0;
        for (int64_t row = first; row < end; row += count) {
          const int64_t in_matrix = row % m;
          const int64_t block_end = std::min(m, (in_matrix / block_rows + 1) * block_rows);
          count = std::min({at_once, end - row, block_end - in_matrix});
          const at::Tensor source = at::from_blob(buffer.data(), {count, n}, at::kByte);
          read_elements(file, stored, row * n, source);
          const int64_t block_row = row / m * ceil_div(m, block_rows) + in_matrix / block_rows;
          dequantize_rows(source,
                          scale_rows.select(0, block_row),
                          block_columns,
                          place.narrow(0, row - first, count));
        }
        if (!into.is_cpu()) target.copy_(place);
      });
}

}  // namespace meshnet
