#pragma once

// The one place that names Asio and Beast: aliases, and the completion tokens of every coroutine
// here.

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

namespace meshnet {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

template <class T>
using Awaitable = asio::awaitable<T>;

/// For operations whose failure is expected: co_await gives (error, results...) and does not throw.
/// The others take asio::use_awaitable.
inline constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

using HttpRequest = http::request<http::string_body>;
using HttpResponse = http::response<http::string_body>;

}  // namespace meshnet
