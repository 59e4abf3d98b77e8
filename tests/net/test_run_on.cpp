#include "net/run_on.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include "loopback.h"

namespace meshnet {
namespace {

Awaitable<std::vector<std::thread::id>> hop_and_return(asio::thread_pool& pool) {
  std::vector<std::thread::id> ids{std::this_thread::get_id()};
  ids.push_back(co_await run_on(pool.get_executor(), [] { return std::this_thread::get_id(); }));
  ids.push_back(std::this_thread::get_id());
  co_return ids;
}

TEST(RunOn, RunsThereAndResumesHere) {
  testing::IoThread io;
  asio::thread_pool pool(1);
  const auto ids = io.run(hop_and_return(pool));
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
}

Awaitable<std::string> caught(asio::thread_pool& pool) {
  std::string message;
  try {
    co_await run_on(pool.get_executor(),
                    []() -> int { throw std::runtime_error("from the other thread"); });
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  co_return message;
}

Awaitable<void> count(asio::thread_pool& pool, std::atomic<int>& runs) {
  co_await run_on(pool.get_executor(), [&runs] { return ++runs; });
}

TEST(RunOn, AFunctionWhoseCallerIsGoneIsDroppedFromTheQueue) {
  asio::io_context io;
  asio::thread_pool pool(1);
  std::promise<void> busy;
  asio::post(pool, [&] { busy.get_future().wait(); });

  std::atomic<int> runs = 0;
  std::vector<std::exception_ptr> ends;
  asio::cancellation_signal cancel;
  const auto note = [&](std::exception_ptr error) { ends.push_back(error); };
  asio::co_spawn(io, count(pool, runs), asio::bind_cancellation_slot(cancel.slot(), note));
  asio::co_spawn(io, count(pool, runs), note);
  io.poll();  // both wait for the pool
  cancel.emit(asio::cancellation_type::terminal);
  io.restart();
  io.poll();  // the cancellation reaches its coroutine before the pool's turn comes
  busy.set_value();
  io.run();
  EXPECT_EQ(runs, 1);
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_NE(ends[0], nullptr);
  EXPECT_EQ(ends[1], nullptr);
}

TEST(RunOn, CarriesExceptions) {
  testing::IoThread io;
  asio::thread_pool pool(1);
  EXPECT_EQ(io.run(caught(pool)), "from the other thread");
}

Awaitable<int> number_from(asio::thread_pool& pool, std::atomic<bool>& ran) {
  co_return co_await run_on(pool.get_executor(), [&ran] {
    ran = true;
    return 1;
  });
}

TEST(RunOn, DropsAQueuedFunctionWhoseCallerIsCancelled) {
  testing::IoThread io;
  asio::thread_pool pool(1);
  std::promise<void> release;
  asio::post(pool, [turn = release.get_future().share()] { turn.wait(); });
  std::atomic<bool> ran = false;
  asio::cancellation_signal signal;
  auto number = asio::co_spawn(io.executor(),
                               number_from(pool, ran),
                               asio::bind_cancellation_slot(signal.slot(), asio::use_future));
  io.call([&] { signal.emit(asio::cancellation_type::terminal); });
  release.set_value();
  EXPECT_THROW(testing::await(std::move(number)), boost::system::system_error);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace meshnet
