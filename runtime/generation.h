#pragma once

#include <boost/asio/experimental/channel.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "net/asio.h"
#include "net/messages.h"
#include "runtime/generation_config.h"
#include "runtime/route_session.h"

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

/// The head's loop: one token a step from the route, text out.
class Generator {
 public:
  Generator(const asio::any_io_executor& executor,
            RouteContext context,
            const GenerationConfig& generation_config);

  /// Generates until an eos token, a stop string or max_tokens. `on_delta` is awaited for every
  /// piece of text, in order; an exception from it ends the generation. Throws HttpError when a
  /// step fails for good. As many run at once as this node keeps sessions, so that none drops the
  /// state of another; the others wait in line, and when that is full there is a 429.
  Awaitable<GenerationEnd> run(GenerationInput input, OnDelta on_delta);

 private:
  Awaitable<GenerationEnd> generate(GenerationInput input, OnDelta on_delta);

  RouteContext context_;
  const GenerationConfig& generation_config_;
  asio::experimental::channel<void(boost::system::error_code)> running_;  ///< full: wait
  int64_t waiting_ = 0;
};

}  // namespace meshnet
