#pragma once

// The one place that names Asio and Beast: aliases, and the completion token of every coroutine
// here.

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

using HttpRequest = http::request<http::string_body>;
using HttpResponse = http::response<http::string_body>;

}  // namespace meshnet
