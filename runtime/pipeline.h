#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/http_client.h"
#include "net/messages.h"
#include "runtime/settings.h"

namespace meshnet {

/// A node after this one in a route.
struct Hop {
  std::string name;
  Url url;
  int64_t start_layer = 0;  ///< first absolute layer it runs in this route
  int64_t protocol = 0;     ///< 0 = it knows the five fixed headers and nothing else
  bool keeps_state = true;  ///< false: it must be sent whole sequences
};

/// Carries hidden states along the hops after this node, and brings the answer back.
class Pipeline {
 public:
  /// `longest_chunk`: tokens of a prefill step that a hop may be at when another arrives.
  Pipeline(HttpClient& client,
           const NodeSettings& self,
           std::string cluster_token,
           int64_t longest_chunk)
      : client_(client),
        self_(self),
        cluster_token_(std::move(cluster_token)),
        longest_chunk_(longest_chunk) {}

  /// Sends request.hidden to hops[0]. Neighbours that speak protocol 1 pass it on among themselves
  /// (chained); where one does not, the tensor comes back and is carried to the next hop from here
  /// (driven). Returns the answer of the last hop, with the Server-Timing of all. request.hop_index
  /// is this node's own.
  ///
  /// Throws HttpError: 502 or 504 naming the hop that could not be reached or was too late; a hop's
  /// own error answer climbs unchanged.
  Awaitable<ForwardReply> carry(ForwardRequest request, std::span<const Hop> hops);

  /// Tells every hop at once to drop a session (DELETE /sessions/{id}). Failures are ignored: time
  /// and count bound what stays.
  Awaitable<void> release(std::string session, std::vector<Hop> hops);

 private:
  Awaitable<void> release_at(std::string session, Hop hop);
  Awaitable<ForwardReply> send(const Hop& hop, ForwardRequest request, std::size_t hops_covered);
  std::chrono::milliseconds time_limit(int64_t tokens, std::size_t hops_covered) const;

  HttpClient& client_;
  const NodeSettings& self_;
  std::string cluster_token_;
  int64_t longest_chunk_;
};

/// The hops that X-Meshnet-Route names, `names[0]` being `self`: each starts where the one before
/// it ends. Throws HttpError 400 for names that are not of the topology, or whose shard does not
/// hold its start layer.
std::vector<Hop> resolve_route(const std::vector<std::string>& names,
                               const NodeSettings& self,
                               const Topology& topology);

}  // namespace meshnet
