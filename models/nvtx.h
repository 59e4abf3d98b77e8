#pragma once

#include <cstdint>
#include <string_view>

namespace meshnet {

/// Ranges on a profiler's timeline, in the NVTX domain "meshnet". With no profiler attached one
/// costs a few nanoseconds: nothing is formatted and nothing copied. In a build without the nvtx3
/// headers there never is one.

/// Whether a profiler listens; found out at the first call.
bool profiler_attached();

/// What a range says: "kind subject session", without what is empty, and a number beside it.
struct RangeLabel {
  std::string_view kind;
  // NOLINTBEGIN(readability-redundant-member-init): GCC wants them where a label leaves them out
  std::string_view subject = {};
  std::string_view session = {};  ///< several with spaces between them
  // NOLINTEND(readability-redundant-member-init)
  int64_t number = 0;  ///< NVTX payload: what it counts depends on the kind
};

/// A range of one thread. Ends on the thread it began on, after those that began inside it: never
/// across a co_await.
class ThreadRange {
 public:
  explicit ThreadRange(const RangeLabel& label);
  /// "kind number", such as "layer 17", so that profilers sum up each number by itself.
  ThreadRange(std::string_view kind, int64_t number);
  ~ThreadRange();
  ThreadRange(const ThreadRange&) = delete;
  ThreadRange& operator=(const ThreadRange&) = delete;

 private:
  bool open_;
};

/// A range that may overlap others, last over a co_await and end on another thread.
class AsyncRange {
 public:
  explicit AsyncRange(const RangeLabel& label);
  ~AsyncRange();
  AsyncRange(AsyncRange&& other) noexcept;
  AsyncRange& operator=(AsyncRange&&) = delete;

 private:
  bool open_;
  uint64_t id_ = 0;
};

}  // namespace meshnet
