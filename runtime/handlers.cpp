#include "runtime/handlers.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>

#include <boost/beast/core/string.hpp>
#include <memory>
#include <utility>

#include "net/http_error.h"
#include "net/openai.h"
#include "runtime/node.h"

namespace meshnet {
namespace {

/// The endpoint's name in metrics: paths without ids and query, and nothing that a client can
/// invent.
std::string endpoint_of(const HttpRequest& request) {
  const std::string path(path_of(request.target()));
  if (path.starts_with("/sessions/")) return "/sessions";
  for (const auto* known : {"/forward",
                            "/v1/chat/completions",
                            "/v1/completions",
                            "/v1/models",
                            "/health",
                            "/metrics",
                            "/status"}) {
    if (path == known) return path;
  }
  return "other";
}

/// The endpoints that only nodes of the cluster may call.
bool is_for_the_cluster(std::string_view path) {
  return path == "/forward" || path == "/status" || path.starts_with("/sessions/");
}

/// "Bearer TOKEN", the scheme in any case, the token compared in constant time.
bool carries_token(std::string_view authorization, const std::string& token) {
  constexpr std::string_view kScheme = "Bearer ";
  if (!beast::iequals(authorization.substr(0, kScheme.size()), kScheme)) return false;
  const auto given = authorization.substr(kScheme.size());
  return given.size() == token.size() &&
         CRYPTO_memcmp(given.data(), token.data(), token.size()) == 0;
}

HttpError to_http_error(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& http_error) {
    return http_error;
  } catch (const std::exception& other) {
    return HttpError(500, "internal_error", other.what());
  }
}

/// Where it happened: this node, unless the error says otherwise.
void add_place(const Node& node, HttpError& error) {
  if (!error.node.empty()) return;
  error.node = node.self.name;
  error.layers = to_string(node.self.layers);
}

}  // namespace

Handler make_handler(Node& node) {
  auto router = std::make_shared<Router>();
  add_forward_routes(*router, node);
  add_status_routes(*router, node);
  if (node.shard.is_first()) add_api_routes(*router, node);
  return [router](Exchange& exchange) -> Awaitable<void> {
    // The coroutine must not outlive what it runs in: the exchange holds its request, the router
    // its handlers.
    const Handler& handler = router->match(exchange.request);
    co_await handler(exchange);
  };
}

HeaderCheck make_header_check(const Node& node) {
  return [&node](const HttpRequest& header) {
    if (node.cluster_token.empty() || !is_for_the_cluster(path_of(header.target()))) return;
    const auto given = header[http::field::authorization];
    if (carries_token(given, node.cluster_token)) return;
    throw HttpError(
        401,
        "unauthorized",
        given.empty() ? "this endpoint needs the cluster's bearer token" : "wrong cluster token");
  };
}

HttpError to_api_error(const Node& node, std::exception_ptr thrown) {
  HttpError error = to_http_error(thrown);
  const bool by_another_node = !error.node.empty();
  // A client of the API is not at fault when a node of the route refuses what another one sent.
  const bool route_fault = by_another_node && error.status < 500 && error.status != 429;
  if (!by_another_node && error.status < 500) return error;
  add_place(node, error);
  const std::string layers = error.layers.empty() ? "" : " (layers " + error.layers + ")";
  HttpError placed(route_fault ? 502 : error.status,
                   error.error,
                   fmt::format("node {}{}: {}", error.node, layers, error.what()));
  placed.retry_after_seconds = error.retry_after_seconds;
  return placed;
}

ErrorFormatter make_error_formatter(Node& node) {
  return [&node](const HttpRequest& request, std::exception_ptr thrown) {
    const bool api = path_of(request.target()).starts_with("/v1/");
    HttpError error = api ? to_api_error(node, thrown) : to_http_error(thrown);
    if (!api) add_place(node, error);
    // Connections beyond the limit come without a request, and could fill the log.
    if (error.status >= 500 && !request.target().empty()) {
      spdlog::warn("{} {}: {} {}",
                   std::string(request.method_string()),
                   std::string(request.target()),
                   error.status,
                   error.what());
    }
    node.metrics.count_request(endpoint_of(request), error.status);

    HttpResponse response{static_cast<http::status>(error.status), 11};
    response.set(http::field::content_type, "application/json");
    if (error.retry_after_seconds) {
      response.set(http::field::retry_after, std::to_string(*error.retry_after_seconds));
    }
    if (error.status == 401) response.set(http::field::www_authenticate, "Bearer");
    response.body() = api ? format_openai_error(error) : format_node_error(error);
    return response;
  };
}

Awaitable<void> send_json(Node& node, Exchange& exchange, http::status status, std::string body) {
  node.metrics.count_request(endpoint_of(exchange.request), static_cast<unsigned>(status));
  HttpResponse response{status, 11};
  response.set(http::field::content_type, "application/json");
  response.body() = std::move(body);
  co_await exchange.send(std::move(response));
}

}  // namespace meshnet
