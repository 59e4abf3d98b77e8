#include "net/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <map>
#include <memory>
#include <set>
#include <utility>

namespace meshnet {
namespace {

using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::uint32_t kMaxHeader = 16 << 10;

/// Answers 1xx before the real one.
constexpr int kMaxInterimAnswers = 8;

/// One connection to a peer.
struct Link {
  explicit Link(const asio::any_io_executor& executor) : stream(executor) {
    buffer.reserve(kReadBytes);
  }

  beast::tcp_stream stream;
  beast::flat_buffer buffer{kMaxHeader + 2 * kReadBytes};
  Clock::time_point idle_since;
};

/// What one attempt at a request came to.
struct Attempt {
  error_code error;
  bool answer_began = false;
  HttpResponse response;
};

PeerError unreachable(const Url& url, const std::string& cause) {
  return {PeerError::Kind::kUnreachable, "http://" + authority(url) + ": " + cause};
}

std::string in_words(Milliseconds time) { return std::to_string(time.count()) + " ms"; }

/// A name looked up on the resolver's own thread. That cannot be interrupted: who has waited long
/// enough goes, and the next who asks for the same name joins.
struct Lookup {
  explicit Lookup(const asio::any_io_executor& executor) : resolver(executor) {}

  tcp::resolver resolver;
  std::set<asio::steady_timer*> waiters;  // cancelled when the result is there
  bool finished = false;
  error_code error;
  std::vector<tcp::endpoint> endpoints;
};

using Lookups = std::map<std::string, std::weak_ptr<Lookup>>;  // in progress, by authority

std::shared_ptr<Lookup> start_or_join(const asio::any_io_executor& executor,
                                      Lookups& lookups,
                                      const Url& url) {
  auto& in_progress = lookups[authority(url)];
  if (auto lookup = in_progress.lock()) return lookup;
  const auto lookup = std::make_shared<Lookup>(executor);
  in_progress = lookup;
  lookup->resolver.async_resolve(
      url.host, std::to_string(url.port), [lookup](error_code error, const auto& results) {
        lookup->finished = true;
        lookup->error = error;
        lookup->endpoints.assign(results.begin(), results.end());
        for (asio::steady_timer* waiter : lookup->waiters) waiter->cancel();
      });
  return lookup;
}

Awaitable<std::vector<tcp::endpoint>> resolve(asio::any_io_executor executor,
                                              std::shared_ptr<Lookups> lookups,
                                              Url url,
                                              Milliseconds timeout) {
  error_code not_numeric;
  const auto address = asio::ip::make_address(url.host, not_numeric);
  if (!not_numeric) co_return std::vector<tcp::endpoint>{{address, url.port}};

  const auto lookup = start_or_join(executor, *lookups, url);
  asio::steady_timer timer(executor, timeout);
  struct Waiting {
    Lookup& lookup;
    asio::steady_timer& timer;
    Waiting(Lookup& in, asio::steady_timer& own) : lookup(in), timer(own) {
      lookup.waiters.insert(&timer);
    }
    Waiting(const Waiting&) = delete;
    ~Waiting() { lookup.waiters.erase(&timer); }
  };
  const Waiting waiting(*lookup, timer);
  co_await timer.async_wait(kAsTuple);
  const asio::cancellation_state cancelled = co_await asio::this_coro::cancellation_state;
  if (cancelled.cancelled() !=
      asio::cancellation_type::none) {  // our caller, not the name, is gone
    throw boost::system::system_error(asio::error::operation_aborted);
  }
  if (!lookup->finished) throw unreachable(url, "its name did not resolve in " + in_words(timeout));
  if (lookup->error)
    throw unreachable(url, "its name does not resolve: " + lookup->error.message());
  co_return lookup->endpoints;
}

Awaitable<std::unique_ptr<Link>> connect(asio::any_io_executor executor,
                                         std::shared_ptr<Lookups> lookups,
                                         Url url,
                                         Milliseconds timeout) {
  const auto limit = Clock::now() + timeout;
  const auto endpoints = co_await resolve(executor, std::move(lookups), url, timeout);
  auto link = std::make_unique<Link>(executor);
  link->stream.expires_at(limit);
  const auto [error, endpoint] = co_await link->stream.async_connect(endpoints, kAsTuple);
  if (error == asio::error::operation_aborted) throw boost::system::system_error(error);
  if (error == beast::error::timeout) {
    throw unreachable(url, "no connection within " + in_words(timeout));
  }
  if (error) throw unreachable(url, "no connection: " + error.message());
  error_code ignored;
  link->stream.socket().set_option(tcp::no_delay(true), ignored);
  co_return std::move(link);
}

/// Sends the request and reads the answer, all before `deadline`.
Awaitable<Attempt> attempt(Link& link,
                           const HttpRequest& request,
                           Clock::time_point deadline,
                           std::size_t max_body) {
  Attempt result;
  link.stream.expires_at(deadline);
  const auto [write_error, written] = co_await http::async_write(link.stream, request, kAsTuple);
  // A peer that refuses a body answers and closes before it has read it all: the answer may be
  // there.
  const bool peer_closed =
      write_error == asio::error::broken_pipe || write_error == asio::error::connection_reset;
  if (write_error && !peer_closed) {
    result.error = write_error;
    co_return std::move(result);
  }
  const bool is_head = request.method() == http::verb::head;
  int interim = 0;
  do {
    http::response_parser<http::string_body> parser;
    parser.header_limit(kMaxHeader);
    parser.body_limit(max_body);
    parser.skip(is_head);
    const auto [read_error, bytes] =
        co_await http::async_read(link.stream, link.buffer, parser, kAsTuple);
    result.error = read_error;
    result.answer_began = result.answer_began || parser.got_some();
    result.response = parser.release();
    // 100 Continue and the like come before the answer.
  } while (!result.error && result.response.result_int() < 200 && ++interim < kMaxInterimAnswers);
  link.stream.expires_never();
  co_return std::move(result);
}

bool closed_by_peer(error_code error) {
  return error == http::error::end_of_stream || error == asio::error::eof ||
         error == asio::error::connection_reset || error == asio::error::broken_pipe;
}

[[noreturn]] void throw_failure(const Url& url,
                                error_code error,
                                Milliseconds timeout,
                                std::size_t max_body) {
  if (error == asio::error::operation_aborted) throw boost::system::system_error(error);
  if (error == beast::error::timeout) {
    throw PeerError(PeerError::Kind::kTimeout,
                    "http://" + authority(url) + ": no answer within " + in_words(timeout));
  }
  if (error == http::error::body_limit) {
    throw unreachable(url,
                      "its answer is larger than the limit of " + std::to_string(max_body) +
                          " bytes (limits.max_body)");
  }
  if (closed_by_peer(error) || error == http::error::partial_message) {
    throw unreachable(url, "it closed the connection before its answer was complete");
  }
  if (error.category() == error_code(http::error::end_of_stream).category()) {
    throw unreachable(url, "its answer is malformed: " + error.message());
  }
  throw unreachable(url, error.message());
}

}  // namespace

struct HttpClient::Pool {
  asio::any_io_executor executor;
  ClientLimits limits;
  std::map<std::string, std::vector<std::unique_ptr<Link>>> idle;  // by authority
  std::shared_ptr<Lookups> lookups = std::make_shared<Lookups>();

  /// The connection used last, or none.
  std::unique_ptr<Link> take(const Url& url) {
    close_expired();
    const auto found = idle.find(authority(url));
    if (found == idle.end()) return nullptr;
    auto link = std::move(found->second.back());
    found->second.pop_back();
    if (found->second.empty()) idle.erase(found);
    return link;
  }

  void keep(const Url& url, std::unique_ptr<Link> link) {
    close_expired();
    link->idle_since = Clock::now();
    idle[authority(url)].push_back(std::move(link));
  }

  void close_expired() {
    const auto oldest = Clock::now() - limits.idle_timeout;
    for (auto& [peer, links] : idle) {
      std::erase_if(links, [oldest](const auto& link) { return link->idle_since < oldest; });
    }
    std::erase_if(idle, [](const auto& peer) { return peer.second.empty(); });
  }
};

HttpClient::HttpClient(asio::any_io_executor executor, ClientLimits limits)
    : pool_(std::make_shared<Pool>()) {
  pool_->executor = std::move(executor);
  pool_->limits = limits;
}

HttpClient::~HttpClient() = default;

Awaitable<HttpResponse> HttpClient::send(const Url& url,
                                         HttpRequest request,
                                         Milliseconds timeout) {
  const auto pool = pool_;  // the client may go while this waits
  const Url peer = url;
  const ClientLimits limits = pool->limits;
  request.version(11);
  request.keep_alive(true);
  request.set(http::field::host, authority(peer));
  request.prepare_payload();

  std::unique_ptr<Link> link = pool->take(peer);
  const bool reused = link != nullptr;
  if (!reused) link = co_await connect(pool->executor, pool->lookups, peer, limits.connect_timeout);
  const auto deadline = Clock::now() + timeout;
  Attempt result = co_await attempt(*link, request, deadline, limits.max_body);
  if (reused && !result.answer_began && closed_by_peer(result.error)) {
    link = co_await connect(pool->executor, pool->lookups, peer, limits.connect_timeout);
    result = co_await attempt(*link, request, deadline, limits.max_body);
  }
  if (result.error) throw_failure(peer, result.error, timeout, limits.max_body);
  // Bytes after the answer would be taken for the next one.
  if (result.response.result_int() >= 200 && result.response.keep_alive() &&
      link->buffer.size() == 0)
    pool->keep(peer, std::move(link));
  co_return std::move(result.response);
}

}  // namespace meshnet
