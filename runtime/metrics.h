#pragma once

#include <prometheus/registry.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/server_timing.h"

namespace meshnet {

/// What GET /metrics shows, in prometheus-cpp's registry. For the I/O thread.
class Metrics {
 public:
  Metrics();

  void count_request(const std::string& endpoint, unsigned status);
  void count_step(std::string_view mode);
  void count_miss(const std::string& reason);
  void count_tokens(int64_t prompt, int64_t completion);
  /// Parts of one step, of this node and (at a head) of every hop: meshnet_hop_seconds{hop,part}.
  void observe(const std::vector<Timing>& timings);
  void set_queue_length(int64_t steps);
  void set_sessions(int64_t count, int64_t bytes);

  /// Prometheus text format.
  std::string text() const;

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& steps_;
  prometheus::Family<prometheus::Counter>& misses_;
  prometheus::Family<prometheus::Counter>& tokens_;
  prometheus::Family<prometheus::Histogram>& hops_;
  /// (hop, part) → its histogram: a look into the family at every step costs more than counting.
  std::map<std::pair<std::string, std::string>, prometheus::Histogram*> hop_parts_;
  prometheus::Gauge& queue_length_;
  prometheus::Gauge& sessions_;
  prometheus::Gauge& session_bytes_;
};

}  // namespace meshnet
