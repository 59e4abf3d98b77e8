#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "models/nvtx.h"
#include "net/asio.h"
#include "net/http_error.h"
#include "net/messages.h"
#include "runtime/metrics.h"
#include "runtime/peers.h"
#include "runtime/pipeline.h"
#include "runtime/shard.h"
#include "runtime/tokenizer.h"

namespace meshnet {

/// What a head has to run generations with.
struct RouteContext {
  Shard& shard;
  Peers& peers;
  Pipeline& pipeline;
  const NodeSettings& self;
  std::string model_fingerprint;
  std::string recipe_fingerprint;
  const Tokenizer& tokenizer;
  Metrics& metrics;
};

/// The newest token, or from a tail of protocol 0 without token ids, its text.
using RouteAnswer = std::variant<int64_t, std::string>;

/// One generation's session on its route: sends a prefill, then decodes, and when a node misses or
/// goes, a prefill of everything so far, perhaps over another route.
class RouteSession {
 public:
  RouteSession(const RouteContext& context,
               asio::any_io_executor executor,
               std::vector<int64_t> prompt_ids,
               SamplingParams sampling,
               std::string trace);
  /// However the generation ended: drops the state here and on every hop that may hold some.
  ~RouteSession();
  RouteSession(const RouteSession&) = delete;
  RouteSession& operator=(const RouteSession&) = delete;

  /// The token after all those so far. Throws HttpError when the route cannot give it for good.
  Awaitable<RouteAnswer> next();

  /// Sums over all steps so far, one entry for each part and node.
  const std::vector<Timing>& timings() const { return timings_; }

 private:
  Awaitable<void> choose_route();
  Awaitable<TokenReply> attempt();
  Awaitable<TokenReply> prefill();
  Awaitable<TokenReply> step(CacheMode mode, int64_t first, int64_t count);
  RouteAnswer take(const TokenReply& reply);
  Awaitable<void> recover(HttpError error);
  Awaitable<void> give_way();
  Awaitable<void> wait(std::chrono::milliseconds time);
  Awaitable<bool> reroute(std::string why);
  void use(std::vector<Hop> hops);
  void observe(const std::vector<Timing>& timings);

  const RouteContext& context_;
  asio::any_io_executor executor_;
  std::string id_;
  int64_t epoch_ = 1;
  std::vector<Hop> hops_;  ///< after this node
  bool routed_ = false;
  std::vector<Hop> used_;        ///< every hop of every epoch
  std::vector<int64_t> tokens_;  ///< prompt and what was generated
  std::vector<int64_t> told_;    ///< those before text_
  std::string text_;             ///< the newest, from a tail that tells no token ids
  SamplingParams sampling_;
  std::string meta_;  ///< the same, for the tail
  std::string trace_;
  bool state_held_ = false;      ///< the route holds state for all tokens but the last
  bool whole_prefills_ = false;  ///< some node keeps no state, or tells no token ids
  bool admitted_ = false;        ///< a token was served: full queues no longer refuse it
  int failures_ = 0;             ///< without a served decode between them
  int waits_ = 0;                ///< for a full queue, in a row
  std::vector<Timing> timings_;
  AsyncRange range_{{.kind = "session", .subject = trace_, .session = id_}};
};

}  // namespace meshnet
