#pragma once

#include <atomic>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include "net/asio.h"

namespace meshnet {

/// Runs `function` on another executor and resumes here with its result, which must be
/// default-constructible, or its exception. When the awaiting coroutine is cancelled while
/// `function` still waits for its turn, it is dropped and operation_aborted is thrown when the turn
/// comes; once it runs, it runs to its end.
template <class Executor, class Function>
Awaitable<std::invoke_result_t<Function>> run_on(Executor executor, Function function) {
  using Result = std::invoke_result_t<Function>;
  const auto initiate = [&executor, &function](auto handler) {
    auto dropped = std::make_shared<std::atomic<bool>>(false);
    auto slot = asio::get_associated_cancellation_slot(handler);
    if (slot.is_connected()) slot.assign([dropped](asio::cancellation_type) { *dropped = true; });
    auto home = asio::make_work_guard(asio::get_associated_executor(handler));

    asio::post(executor,
               [handler = std::move(handler),
                function = std::move(function),
                dropped,
                slot,
                home]() mutable {
                 std::exception_ptr error;
                 Result result{};
                 try {
                   if (*dropped) throw boost::system::system_error(asio::error::operation_aborted);
                   result = function();
                 } catch (...) {
                   error = std::current_exception();
                 }
                 const auto back = home.get_executor();
                 asio::dispatch(back,
                                [handler = std::move(handler),
                                 error = std::move(error),  // this thread keeps no share of it
                                 result = std::move(result),
                                 slot,
                                 home]() mutable {
                                  slot.clear();
                                  std::move(handler)(std::move(error), std::move(result));
                                });
               });
  };
  co_return co_await asio::async_initiate<const asio::use_awaitable_t<>,
                                          void(std::exception_ptr, Result)>(initiate,
                                                                            asio::use_awaitable);
}

}  // namespace meshnet
