#include "runtime/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace meshnet {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {
    0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0};

/// Reasons come from other nodes; a label must not be whatever they say.
constexpr std::array<std::string_view, 8> kMissReasons = {"unknown_session",
                                                          "evicted_ttl",
                                                          "evicted_lru",
                                                          "released",
                                                          "superseded_epoch",
                                                          "seq_len_mismatch",
                                                          "start_layer_mismatch",
                                                          "caching_disabled"};

}  // namespace

Metrics::Metrics()
    : requests_(prometheus::BuildCounter()
                    .Name("meshnet_requests_total")
                    .Help("Answered requests by endpoint and status")
                    .Register(registry_)),
      steps_(prometheus::BuildCounter()
                 .Name("meshnet_steps_total")
                 .Help("Steps run by this node's shard")
                 .Register(registry_)),
      misses_(prometheus::BuildCounter()
                  .Name("meshnet_cache_misses_total")
                  .Help("Steps refused or repeated because session state was not there, by reason")
                  .Register(registry_)),
      tokens_(prometheus::BuildCounter()
                  .Name("meshnet_tokens_total")
                  .Help("Tokens of finished generations at this head, by kind")
                  .Register(registry_)),
      hops_(prometheus::BuildHistogram()
                .Name("meshnet_hop_seconds")
                .Help("Queue, compute and wire time of one step at each hop")
                .Register(registry_)),
      queue_length_(prometheus::BuildGauge()
                        .Name("meshnet_queue_length")
                        .Help("Steps waiting or running on the compute thread")
                        .Register(registry_)
                        .Add({})),
      sessions_(prometheus::BuildGauge()
                    .Name("meshnet_sessions")
                    .Help("Sessions that hold state on this node")
                    .Register(registry_)
                    .Add({})),
      session_bytes_(prometheus::BuildGauge()
                         .Name("meshnet_session_bytes")
                         .Help("Bytes of all session state on this node")
                         .Register(registry_)
                         .Add({})) {}

void Metrics::count_request(const std::string& endpoint, unsigned status) {
  requests_.Add({{"endpoint", endpoint}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::count_step(std::string_view mode) {
  steps_.Add({{"mode", std::string(mode)}}).Increment();
}

void Metrics::count_miss(const std::string& reason) {
  const bool known = std::ranges::find(kMissReasons, reason) != kMissReasons.end();
  misses_.Add({{"reason", known ? reason : "other"}}).Increment();
}

void Metrics::count_tokens(int64_t prompt, int64_t completion) {
  tokens_.Add({{"kind", "prompt"}}).Increment(static_cast<double>(prompt));
  tokens_.Add({{"kind", "completion"}}).Increment(static_cast<double>(completion));
}

void Metrics::observe(const std::vector<Timing>& timings) {
  for (const auto& timing : timings) {
    prometheus::Histogram*& histogram = hop_parts_[{timing.node, timing.part}];
    if (histogram == nullptr) {
      histogram = &hops_.Add({{"hop", timing.node}, {"part", timing.part}}, kSeconds);
    }
    histogram->Observe(timing.milliseconds / 1000.0);
  }
}

void Metrics::set_queue_length(int64_t steps) { queue_length_.Set(static_cast<double>(steps)); }

void Metrics::set_sessions(int64_t count, int64_t bytes) {
  sessions_.Set(static_cast<double>(count));
  session_bytes_.Set(static_cast<double>(bytes));
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace meshnet
