#pragma once

#include <exception>
#include <string>

#include "net/http_error.h"
#include "net/http_server.h"
#include "net/router.h"

namespace meshnet {

struct Node;

/// The node's endpoints, each thin over the pure functions of net/ and the loop in generation.h:
/// /forward and DELETE /sessions/{id} (handlers_forward.cpp), /v1/... where layer 0 is held
/// (handlers_api.cpp), /health, /metrics and /status (handlers_status.cpp).
Handler make_handler(Node& node);

/// The one place where what was thrown becomes a status: OpenAI's error shape under /v1/, the
/// nodes' own elsewhere.
ErrorFormatter make_error_formatter(Node& node);

/// What a client of the API sees of an exception: which node of the route failed, and 502 where it
/// was a node, not the client, that asked for the impossible.
HttpError to_api_error(const Node& node, std::exception_ptr thrown);

void add_forward_routes(Router& router, Node& node);
void add_api_routes(Router& router, Node& node);
void add_status_routes(Router& router, Node& node);

/// Answers with JSON text and counts the request.
Awaitable<void> send_json(Node& node, Exchange& exchange, http::status status, std::string body);
/// Wraps a handler that only nodes of the cluster may call; throws HttpError 401 without the right
/// bearer token.
Handler require_cluster_token(Node& node, Handler handler);

}  // namespace meshnet
