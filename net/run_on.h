#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <type_traits>
#include <utility>

#include "net/asio.h"

namespace meshnet {

/// Runs `function` on another executor and resumes here with its result or its exception.
template <class Executor, class Function>
Awaitable<std::invoke_result_t<Function>> run_on(Executor executor, Function function) {
  using Result = std::invoke_result_t<Function>;
  co_return co_await asio::co_spawn(
      executor,
      [f = std::move(function)]() mutable -> Awaitable<Result> { co_return f(); },
      asio::use_awaitable);
}

}  // namespace meshnet
