// What a range costs: nanoseconds for each kind, as the process was started. By hand, on a quiet
// machine; with a profiler attached (NVTX_INJECTION64_PATH) the figures are the profiler's.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "models/nvtx.h"

namespace meshnet {
namespace {

constexpr int64_t kRanges = 10'000'000;

template <class Range>
void measure(const char* name, const Range& range) {
  const auto begun = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < kRanges; ++i) range(i);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begun;
  std::printf("%-8s %6.1f ns\n", name, elapsed.count() / kRanges);
}

void measure_all() {
  const std::string session = "01234567-89ab-cdef-0123-456789abcdef";
  std::printf("profiler attached: %s\n", profiler_attached() ? "yes" : "no");
  measure("layer", [](int64_t i) { const ThreadRange range("layer", i); });
  measure("step", [&](int64_t i) {
    const ThreadRange range({.kind = "decode", .session = session, .number = i});
  });
  measure("hop", [&](int64_t i) {
    const AsyncRange range({.kind = "hop", .subject = "tail", .session = session, .number = i});
  });
  measure("queue", [&](int64_t i) {  // moved to the thread that ends it, as the shard does
    AsyncRange range({.kind = "queue", .session = session, .number = i});
    std::vector<AsyncRange> moved;
    moved.push_back(std::move(range));
    moved.clear();
  });
}

}  // namespace
}  // namespace meshnet

int main() { meshnet::measure_all(); }
