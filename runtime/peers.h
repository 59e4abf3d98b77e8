#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/config.h"
#include "net/http_client.h"
#include "runtime/pipeline.h"
#include "runtime/route.h"
#include "runtime/settings.h"

namespace meshnet {

/// What a head last heard from another node.
struct PeerState {
  bool usable = false;
  std::string reason = "has not been asked yet";  ///< why it is not usable; a clause for people
  int64_t protocol = 0;
  bool keeps_state = true;  ///< false: it would take a decode for a sequence of one token
  std::chrono::steady_clock::time_point probed;  ///< when that was found out; protocol 0 only
};

/// A head's view of the other nodes of its topology: asks each for GET /status, and picks routes
/// over those that answer.
class Peers {
 public:
  using Clock = std::chrono::steady_clock;

  Peers(HttpClient& client,
        const Topology& topology,
        const NodeSettings& self,
        std::string cluster_token,
        std::string model_fingerprint,
        const ModelConfig& config,
        Dtype dtype,
        std::function<Clock::time_point()> now = Clock::now);

  /// Asks every node once a second until cancelled.
  Awaitable<void> watch();

  /// The hops after this node of the best complete route. Nodes that were not usable are asked once
  /// more before it gives up, so that one just started is found. Throws HttpError 502 naming the
  /// nodes that are missing.
  Awaitable<std::vector<Hop>> choose_hops();

  /// A request to this node failed: it is left out of routes until it answers again.
  void mark_failed(const std::string& name, const std::string& reason);

  /// Why no complete route exists right now, as a sentence; empty when one does.
  std::string unavailable_reason() const;

  const std::map<std::string, PeerState>& states() const { return states_; }

 private:
  Awaitable<void> ask(const NodeSettings& node);
  Awaitable<void> ask_all(bool only_unusable);
  Awaitable<PeerState> probe(const NodeSettings& node, PeerState heard);
  Awaitable<bool> keeps_state(const NodeSettings& node, std::chrono::milliseconds timeout);
  PeerState judge(const NodeSettings& node, const HttpResponse& response) const;
  /// This node and those that are usable.
  std::vector<RouteCandidate> candidates() const;

  HttpClient& client_;
  const Topology& topology_;
  const NodeSettings& self_;
  std::string cluster_token_;
  std::string model_fingerprint_;
  int64_t num_hidden_layers_;
  HiddenStates zeros_;  ///< one row
  std::function<Clock::time_point()> now_;
  std::map<std::string, PeerState> states_;
};

}  // namespace meshnet
