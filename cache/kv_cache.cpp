#include "cache/kv_cache.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace meshnet {
namespace {

/// [2, num_key_value_heads, 0, head_dim]
template <typename Geometry>
at::Tensor empty_buffer(const Geometry& geometry, at::ScalarType dtype, at::Device device) {
  return at::empty({2, geometry.num_key_value_heads, 0, geometry.head_dim},
                   at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor with_capacity(const at::Tensor& buffer, int64_t capacity) {
  return at::empty({2, buffer.size(1), capacity, buffer.size(3)}, buffer.options());
}

/// Tokens [first, last) of a buffer.
KeyValue view_of(const at::Tensor& buffer, int64_t first, int64_t last) {
  const at::Tensor tokens = buffer.narrow(2, first, last - first);
  return {tokens.select(0, 0), tokens.select(0, 1)};
}

/// Rows [rows, heads, head_dim] into views [heads, rows, head_dim].
void fill(const KeyValue& target, const at::Tensor& key, const at::Tensor& value) {
  target.key.copy_(key.transpose(0, 1));
  target.value.copy_(value.transpose(0, 1));
}

void check_length(int64_t length, int64_t held) {
  if (length >= 0 && length <= held) return;
  throw std::invalid_argument("truncate: expected 0 to " + std::to_string(held) + " tokens, got " +
                              std::to_string(length));
}

}  // namespace

KvCache::KvCache(const KvGeometry& geometry, at::ScalarType dtype, at::Device device)
    : buffer_(empty_buffer(geometry, dtype, device)) {}

KeyValue KvCache::extend(int64_t rows) {
  const int64_t length = length_ + rows;
  if (length > buffer_.size(2)) {
    at::Tensor grown = with_capacity(buffer_, capacity(length));
    grown.narrow(2, 0, length_).copy_(buffer_.narrow(2, 0, length_));
    buffer_ = std::move(grown);
  }
  length_ = length;
  return view_of(buffer_, 0, length_);
}

KeyValue KvCache::append(const at::Tensor& key, const at::Tensor& value) {
  const int64_t rows = key.size(0);
  KeyValue all = extend(rows);
  fill(view_of(buffer_, length_ - rows, length_), key, value);
  return all;
}

void KvCache::truncate(int64_t length) {
  check_length(length, length_);
  length_ = length;
}

SlidingKvCache::SlidingKvCache(const SlidingKvGeometry& geometry,
                               at::ScalarType dtype,
                               at::Device device)
    : sliding_window_(geometry.sliding_window), buffer_(empty_buffer(geometry, dtype, device)) {
  if (sliding_window_ < 1) {
    throw std::invalid_argument("sliding_window: expected at least 1, got " +
                                std::to_string(sliding_window_));
  }
}

int64_t SlidingKvCache::capacity(int64_t sliding_window, int64_t tokens) {
  return std::min(KvCache::capacity(tokens), max_capacity(sliding_window));
}

KeyValue SlidingKvCache::append(const at::Tensor& key, const at::Tensor& value) {
  const int64_t rows = key.size(0);
  const int64_t length = length_ + rows;
  grow(capacity(sliding_window_, length));

  // What the new rows see of the past, and what must stay for the token after them.
  const int64_t visible = std::min(held_, sliding_window_ - 1);
  if (visible + rows > buffer_.size(2)) return append_past_capacity(key, value);

  if (held_ + rows > buffer_.size(2)) keep_newest(visible);
  fill(view_of(buffer_, held_, held_ + rows), key, value);
  held_ += rows;
  length_ = length;
  return view_of(buffer_, held_ - rows - visible, held_);
}

void SlidingKvCache::grow(int64_t capacity) {
  if (capacity <= buffer_.size(2)) return;
  at::Tensor grown = with_capacity(buffer_, capacity);
  grown.narrow(2, 0, held_).copy_(buffer_.narrow(2, 0, held_));
  buffer_ = std::move(grown);
}

void SlidingKvCache::keep_newest(int64_t count) {
  // Through a copy, since the two places may overlap.
  const at::Tensor newest = buffer_.narrow(2, held_ - count, count).clone();
  buffer_.narrow(2, 0, count).copy_(newest);
  held_ = count;
}

KeyValue SlidingKvCache::append_past_capacity(const at::Tensor& key, const at::Tensor& value) {
  const int64_t visible = std::min(held_, sliding_window_ - 1);
  const KeyValue past = view_of(buffer_, held_ - visible, held_);
  KeyValue all{at::cat({past.key, key.transpose(0, 1)}, 1),
               at::cat({past.value, value.transpose(0, 1)}, 1)};
  const int64_t kept = std::min(all.key.size(1), sliding_window_ - 1);
  const KeyValue target = view_of(buffer_, 0, kept);
  target.key.copy_(all.key.narrow(1, all.key.size(1) - kept, kept));
  target.value.copy_(all.value.narrow(1, all.value.size(1) - kept, kept));
  held_ = kept;
  length_ += key.size(0);
  return all;
}

bool SlidingKvCache::can_truncate(int64_t length) const {
  const int64_t needed = std::min(length, sliding_window_ - 1);
  return needed == 0 || held_ - (length_ - length) >= needed;
}

bool SlidingKvCache::truncate(int64_t length) {
  check_length(length, length_);
  if (!can_truncate(length)) return false;
  held_ = std::max<int64_t>(held_ - (length_ - length), 0);
  length_ = length;
  return true;
}

}  // namespace meshnet
