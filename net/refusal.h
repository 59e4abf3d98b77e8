#pragma once

// What the server itself refuses, whoever handles its requests. Internal to connection.cpp and
// http_server.cpp.

#include <boost/system/error_code.hpp>
#include <optional>

#include "net/asio.h"
#include "net/http_error.h"
#include "net/http_server.h"

namespace meshnet {

/// What to answer to a request that could not be read; nothing when nobody is there to read it.
std::optional<HttpError> unreadable(boost::system::error_code error,
                                    bool timed_out,
                                    const ServerLimits& limits);

/// Throws HttpError 501 for any transfer coding but `chunked` alone.
void check_transfer_encoding(const HttpRequest& header);

HttpError too_many_connections(const ServerLimits& limits);

}  // namespace meshnet
