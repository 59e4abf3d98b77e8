// Sixteen sessions on threads of their own, over two shards with their queues.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <future>
#include <mutex>
#include <thread>

#include "net/http_error.h"
#include "tests/runtime/shards.h"

namespace meshnet {
namespace {

/// Two shards as processes have them: their queues on an I/O thread, each engine on one of its own.
class Pair {
 public:
  Pair() : head(load_shard(io_, 0)), tail(load_shard(io_, 1)), io_thread_([this] { io_.run(); }) {}
  ~Pair() {
    work_.reset();
    io_thread_.join();
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  TimedOutput step(Shard& shard, StepInput input) {
    return asio::co_spawn(io_, shard.step(std::move(input), /*admitted=*/true), asio::use_future)
        .get();
  }

 private:
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};

 public:
  std::unique_ptr<Shard> head, tail;

 private:
  std::thread io_thread_;
};

/// What became of one step over both.
struct Carried {
  std::string missed;       ///< the reason; empty when it was served
  double compute_ms = 0.0;  ///< at the tail
};

Carried carry(Pair& pair, Generation& generation, int64_t count) {
  const StepInput input = generation.step(count);
  try {
    TimedOutput seam = pair.step(*pair.head, input);
    const TimedOutput made =
        pair.step(*pair.tail, after(input, std::get<HiddenStates>(std::move(seam.output))));
    generation.served(count, std::get<std::optional<int64_t>>(made.output));
    return {"", made.compute_ms};
  } catch (const HttpError& error) {
    if (error.error != "cache_miss") throw;
    generation.missed(error.reason);
    return {error.reason};
  }
}

TEST(IsolationTest, SixteenSessionsOnThreadsOfTheirOwn) {
  const auto& expected = serial_answers();
  Pair pair;
  auto all = generations("threaded");
  std::mutex mutex;  // of what follows
  std::map<std::string, int> misses;
  std::map<double, int> runs;  // steps of each run at the tail, by the time it took
  std::vector<std::string> ids(all.size());

  const auto drive = [&](std::size_t own) {
    Random random(static_cast<unsigned>(own));
    Generation& generation = all[own];
    while (!generation.done()) {
      if (pick(random, 0, 29) == 0) generation.reroute();
      const auto other = static_cast<std::size_t>(pick(random, 0, kGenerations - 1));
      std::string victim;
      {
        const std::lock_guard lock(mutex);
        ids[own] = generation.session();
        if (pick(random, 0, 59) == 0) victim = ids[other];
      }
      if (!victim.empty()) {
        (random() % 2 == 0 ? pair.head : pair.tail)->release(victim);
        EXPECT_GE(pair.head->cache_status().total_bytes, 0);
        pair.tail->cache_status();
      }
      const Carried carried = carry(pair, generation, some(random, generation));
      const std::lock_guard lock(mutex);
      if (carried.missed.empty()) {
        ++runs[carried.compute_ms];
      } else {
        ++misses[carried.missed];
      }
    }
    pair.head->release(generation.session());
    pair.tail->release(generation.session());
  };
  std::vector<std::future<void>> threads;
  for (std::size_t i = 0; i < all.size(); ++i) {
    threads.push_back(std::async(std::launch::async, drive, i));
  }
  for (auto& thread : threads) thread.get();

  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].answer(), expected[i]) << i;
  EXPECT_GT(misses["evicted_lru"], 0);
  EXPECT_GT(misses["released"], 0);
  EXPECT_THAT(runs, testing::Contains(testing::Pair(testing::_, testing::Gt(1)))) << "batches";
  // A release reached one node only: what the other still has goes as an orphan would, by its id.
  for (Shard* shard : {pair.head.get(), pair.tail.get()}) {
    for (const SessionStatus& left : shard->cache_status().sessions) shard->release(left.id);
    expect_empty(shard->cache_status());
  }
}

}  // namespace
}  // namespace meshnet
