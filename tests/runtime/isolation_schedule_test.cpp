// A random schedule of steps, releases and route changes, on one thread.

#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "net/http_error.h"
#include "tests/runtime/isolation.h"

namespace meshnet {
namespace {

/// The status with which a request of this session is turned away at the door; 0 = it is not.
unsigned refused(Engine& engine, const std::string& session, int64_t epoch) {
  try {
    engine.admit(session, epoch);
    return 0;
  } catch (const HttpError& error) {
    return error.status;
  }
}

/// The route changes while a step of the old one is still on its way: it comes to nothing.
void reroute(Route& route, Generation& generation, Random& random) {
  const StepInput late = generation.step(1);
  generation.reroute();
  route.carry({{&generation, some(random, generation)}});
  for (Engine* engine : {route.head.get(), route.tail.get()}) {
    EXPECT_EQ(refused(*engine, late.session, late.epoch), 412U);
  }
  if (generation.held() == 0) return;  // released meanwhile
  const auto results = route.head->step(std::vector{late});
  EXPECT_EQ(miss_reason(std::get<std::exception_ptr>(results[0])), "superseded_epoch");
  ++route.misses["superseded_epoch"];
}

/// Up to kMaxBatch generations: one that prefills, decodes of several, or a mixture.
std::vector<Route::Member> random_batch(std::vector<Generation*> open, Random& random) {
  std::ranges::shuffle(open, random);
  const bool mixed = pick(random, 0, 3) == 0;
  const auto wanted = static_cast<std::size_t>(pick(random, 1, kMaxBatch));
  std::vector<Route::Member> batch;
  for (Generation* generation : open) {
    if (batch.size() == wanted) break;
    const bool fits =
        batch.empty() || mixed || (generation->decodes() && batch.front().generation->decodes());
    if (fits) batch.push_back({generation, some(random, *generation)});
  }
  return batch;
}

TEST(IsolationTest, ARandomScheduleOfSixteenSessions) {
  const auto& expected = serial_answers();
  for (const unsigned seed : {1U, 2U, 3U}) {
    Random random(seed);
    Route route;
    auto all = generations("scheduled");
    int steps = 0, batched = 0, reroutes = 0;
    while (true) {
      // More take part than there are places, but few enough that most decodes find their state.
      std::vector<Generation*> open;
      for (Generation& generation : all) {
        if (!generation.done() && open.size() < kMaxSessions + 2) open.push_back(&generation);
      }
      if (open.empty()) break;
      ASSERT_LT(++steps, 20000);
      Generation& one =
          *open[static_cast<std::size_t>(pick(random, 0, static_cast<int64_t>(open.size()) - 1))];
      const int64_t event = pick(random, 0, 15);
      if (event == 0) {
        route.release(one.session());
      } else if (event == 1 && one.held() > 0) {
        reroute(route, one, random);
        ++reroutes;
      } else {
        const auto batch = random_batch(open, random);
        if (batch.size() > 1) ++batched;
        route.carry(batch);
      }
      EXPECT_LE(route.tail->cache_status().sessions.size(), std::size_t{kMaxSessions});
    }
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].answer(), expected[i]) << i;
    for (const char* reason : {"evicted_lru", "released", "superseded_epoch"}) {
      EXPECT_GT(route.misses[reason], 5) << reason << ", seed " << seed;
    }
    EXPECT_GT(batched, 50);
    EXPECT_GT(reroutes, 5);
    for (const Generation& generation : all) route.release(generation.session());
    expect_empty(route.head->cache_status());
    expect_empty(route.tail->cache_status());
  }
}

}  // namespace
}  // namespace meshnet
