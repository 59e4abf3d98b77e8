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

/// Refuses with 401, before their bodies are read, requests to /forward, /sessions/{id} and /status
/// without the cluster's bearer token. Nothing else knows which endpoints are the cluster's.
HeaderCheck make_header_check(const Node& node);

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

}  // namespace meshnet
