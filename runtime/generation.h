#pragma once

#include <cstdint>
#include <functional>
#include <list>
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
  Generator(RouteContext context, const GenerationConfig& generation_config)
      : context_(std::move(context)), generation_config_(generation_config) {}

  /// Generates until an eos token, a stop string or max_tokens. `on_delta` is awaited for every
  /// piece of text, in order; an exception from it ends the generation. Throws HttpError when a
  /// step fails for good. As many run at once as this node can keep sessions of their full length,
  /// so that none drops the state of another; the others wait in line, and when that is full there
  /// is a 429.
  Awaitable<GenerationEnd> run(GenerationInput input, OnDelta on_delta);

 private:
  class Place;

  Awaitable<GenerationEnd> generate(GenerationInput input, OnDelta on_delta);
  void let_in();

  RouteContext context_;
  const GenerationConfig& generation_config_;
  std::list<Place*> line_;  ///< those that wait, the first in front
  int64_t running_ = 0;
  int64_t running_bytes_ = 0;  ///< of state, at their full length
};

}  // namespace meshnet
