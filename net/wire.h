#pragma once

#include <cstdint>
#include <string>

#include "net/asio.h"
#include "net/messages.h"

namespace meshnet {

/// The protocol of this node: what format_forward and format_forward_reply write.
inline constexpr int64_t kOwnProtocol = 1;

/// What the receiving node knows and a sender may leave out.
struct WireDefaults {
  Dtype dtype = Dtype::kBFloat16;
  int64_t hidden_size = 0;
  int64_t max_tokens = 0;  ///< more tokens than this in one body are refused (the model's context)
};

/// Headers and body of POST /forward → value. Throws HttpError 400 naming the header or field,
/// before anything is allocated from numbers that the client sent.
ForwardRequest parse_forward(HttpRequest request, const WireDefaults& defaults);

/// The request for the next hop. Only the five fixed headers when `peer_protocol` is 0, else all
/// that are set.
HttpRequest format_forward(const ForwardRequest& request, int64_t peer_protocol);

/// A node's answer with status 200 → value; throws HttpError 502 when it is malformed. For hidden
/// states without dtype and shape headers (protocol 0) `defaults` apply, as in parse_forward.
ForwardReply parse_forward_reply(HttpResponse response, const WireDefaults& defaults);

HttpResponse format_forward_reply(const ForwardReply& reply);

}  // namespace meshnet
