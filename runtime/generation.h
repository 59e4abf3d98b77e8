#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "net/asio.h"
#include "net/http_error.h"
#include "net/messages.h"
#include "runtime/generation_config.h"
#include "runtime/metrics.h"
#include "runtime/peers.h"
#include "runtime/pipeline.h"
#include "runtime/shard.h"
#include "runtime/tokenizer.h"

namespace meshnet {

/// One generation, resolved: nothing is left to defaults.
struct GenerationInput {
  std::vector<int64_t> prompt_ids;  ///< at least one
  SamplingParams sampling;
  int64_t max_tokens = 0;  ///< at least one
  std::vector<std::string> stop;
  std::string trace;  ///< request id
};

/// What one or more tokens added to the answer.
struct GenerationDelta {
  std::string text;
  std::vector<int64_t> token_ids;  ///< an eos token included
  std::string server_timing;       ///< of all steps so far, by hop
};

struct GenerationEnd {
  std::string finish_reason;  ///< "stop" or "length"
  int64_t completion_tokens = 0;
};

using OnDelta = std::function<Awaitable<void>(GenerationDelta)>;

/// The head's loop: own layers, then the hops, one token a step.
class Generator {
 public:
  Generator(Shard& shard,
            Peers& peers,
            Pipeline& pipeline,
            const NodeSettings& self,
            std::string model_fingerprint,
            const Tokenizer& tokenizer,
            const GenerationConfig& generation_config,
            Metrics& metrics);

  /// Generates until an eos token, a stop string or max_tokens. `on_delta` is awaited for every
  /// piece of text, in order; an exception from it ends the generation. Throws HttpError when a
  /// step fails for good.
  Awaitable<GenerationEnd> run(GenerationInput input, OnDelta on_delta);

 private:
  struct Session;

  Awaitable<int64_t> next_token(Session& session);
  Awaitable<int64_t> step(Session& session, CacheMode mode);
  bool can_go_on(Session& session, const HttpError& error);
  void observe(Session& session, const std::vector<Timing>& timings);
  bool is_eos(int64_t id) const;

  Shard& shard_;
  Peers& peers_;
  Pipeline& pipeline_;
  const NodeSettings& self_;
  std::string model_fingerprint_;
  const Tokenizer& tokenizer_;
  const GenerationConfig& generation_config_;
  Metrics& metrics_;
};

}  // namespace meshnet
