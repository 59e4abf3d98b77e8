#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/address_v6.hpp>
#include <stdexcept>

#include "net/http_client.h"
#include "net/parse_number.h"

namespace meshnet {
namespace {

struct HostPort {
  std::string host;  // without brackets
  bool bracketed = false;
  uint16_t port = 0;
};

[[noreturn]] void fail(std::string_view text, const std::string& what) {
  throw std::invalid_argument("'" + std::string(text) + "': " + what);
}

/// "host:port" or "[v6]:port". `prefix` is what stands before it in the advice about brackets.
HostPort split_host_port(std::string_view whole, std::string_view text, const std::string& prefix) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) fail(whole, "the port is missing");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  HostPort result;
  result.bracketed = host.starts_with('[') && host.ends_with(']');
  if (result.bracketed) {
    host = host.substr(1, host.size() - 2);
    boost::system::error_code error;
    asio::ip::make_address_v6(std::string(host), error);
    if (error) fail(whole, "'" + std::string(host) + "' is not an IPv6 address");
  } else if (text.starts_with('[') && text.ends_with(']')) {
    fail(whole, "the port is missing");
  } else if (host.find(':') != std::string_view::npos) {
    fail(whole,
         "an IPv6 address needs brackets: " + prefix + "[" + std::string(host) +
             "]:" + std::string(digits));
  }
  const auto port = parse_number(digits, 65535);
  if (!port) fail(whole, "expected a port from 0 to 65535, got '" + std::string(digits) + "'");
  result.host = host;
  result.port = static_cast<uint16_t>(*port);
  return result;
}

bool is_host_name(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

}  // namespace

Url parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) fail(text, "expected http://host:port");
  std::string_view rest = text.substr(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find_first_of("/?#@") != std::string_view::npos) {
    fail(text, "expected http://host:port and nothing before or after it");
  }
  HostPort parts = split_host_port(text, rest, std::string(kScheme));
  if (!parts.bracketed && !is_host_name(parts.host)) {
    fail(text, "'" + parts.host + "' is not a host name");
  }
  if (parts.port == 0) fail(text, "expected a port from 1 to 65535, got '0'");
  return {std::move(parts.host), parts.port};
}

std::string authority(const Url& url) {
  const bool v6 = url.host.find(':') != std::string::npos;
  return (v6 ? "[" + url.host + "]" : url.host) + ":" + std::to_string(url.port);
}

tcp::endpoint parse_listen(std::string_view text) {
  const HostPort parts = split_host_port(text, text, "");
  boost::system::error_code error;
  const auto address = asio::ip::make_address(parts.host, error);
  if (error) {
    fail(text,
         "expected an address such as 0.0.0.0 or [::] before the port, got '" + parts.host + "'");
  }
  return {address, parts.port};
}

}  // namespace meshnet
