#include "models/weight_arena.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <new>
#include <numeric>

namespace meshnet {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLeastBlock = std::size_t{256} << 20;
constexpr std::size_t kAlignment = 64;  // bytes; LibTorch's own

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

/// Mapped memory that begins at a huge page.
struct WeightArena::Block {
  explicit Block(std::size_t bytes) : size(round_up(bytes, kHugePage) + kHugePage) {
    mapped = ::mmap(
        nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    data = static_cast<char*>(mapped);
    data += round_up(reinterpret_cast<std::size_t>(data), kHugePage) -
            reinterpret_cast<std::size_t>(data);
    ::madvise(data, size - kHugePage, MADV_HUGEPAGE);  // a wish: small pages are only slower
  }
  ~Block() { ::munmap(mapped, size); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::size_t usable() const { return size - kHugePage; }

  std::size_t size;
  void* mapped;
  char* data;
};

at::Tensor WeightArena::empty(at::IntArrayRef shape, at::ScalarType dtype) {
  const auto numel = static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  const std::size_t bytes = round_up(numel * c10::elementSize(dtype), kAlignment);
  if (!block_ || used_ + bytes > block_->usable()) {
    block_ = std::make_shared<Block>(std::max(bytes, kLeastBlock));
    used_ = 0;
  }
  void* data = block_->data + used_;
  used_ += bytes;
  return at::from_blob(data, shape, [block = block_](void*) {}, dtype);
}

}  // namespace meshnet
