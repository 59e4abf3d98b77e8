// Sessions side by side on two engines, in-process: whatever the schedule does to their state, each
// gives the answer it gives alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "models/config.h"
#include "net/http_error.h"
#include "runtime/engine.h"

namespace meshnet {
namespace {

constexpr int kGenerations = 16;
constexpr int64_t kTokens = 24;  // of each answer
constexpr int64_t kMaxSessions = 6;
constexpr std::size_t kMaxBatch = 5;
constexpr int64_t kVocab = 199;
constexpr int64_t kCut = 2;
const LayerRange kLayers[] = {{0, kCut}, {kCut, 4}};

using Random = std::mt19937;
using Ids = std::vector<int64_t>;

Random seeded(unsigned seed) { return Random(seed); }

int64_t pick(Random& random, int64_t from, int64_t to) {
  return std::uniform_int_distribution<int64_t>(from, to)(random);
}

std::unique_ptr<Engine> load(int node, Dtype dtype = Dtype::kFloat32) {
  const char* models = std::getenv("MESHNET_TINY_MODELS");
  if (!models) throw std::runtime_error("MESHNET_TINY_MODELS is not set: run the tests with ctest");
  EngineOptions options;
  options.model_dir = std::filesystem::path(models) / "dense";
  options.layers = kLayers[node];
  options.dtype = dtype;
  options.device = "cpu";
  options.threads = 2;
  options.cache.max_sessions = kMaxSessions;
  return std::make_unique<Engine>(options, read_config(options.model_dir));
}

/// The reason of a 409; every other error is thrown on.
std::string miss_reason(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& http) {
    if (http.error != "cache_miss") throw;
    return http.reason;
  }
}

/// The status with which a request of this session is turned away at the door; 0 = it is not.
unsigned refused(Engine& engine, const std::string& session, int64_t epoch) {
  try {
    engine.admit(session, epoch);
    return 0;
  } catch (const HttpError& error) {
    return error.status;
  }
}

StepInput after(const StepInput& head, HiddenStates hidden) {
  StepInput tail = head;
  tail.input = std::move(hidden);
  tail.start_layer = kCut;
  return tail;
}

/// One answer as a head drives it: its ids, and how many of them the nodes should hold.
class Generation {
 public:
  Generation(std::string name, Ids prompt)
      : name_(std::move(name)), tokens_(std::move(prompt)), prompt_(tokens_.size()) {}

  std::string session() const { return name_ + "." + std::to_string(released_); }
  int64_t epoch() const { return epoch_; }
  int64_t held() const { return held_; }
  int64_t missing() const { return static_cast<int64_t>(tokens_.size()) - held_; }
  bool decodes() const { return held_ > 0 && missing() == 1; }
  Ids answer() const { return {tokens_.begin() + static_cast<int64_t>(prompt_), tokens_.end()}; }
  bool done() const { return tokens_.size() == prompt_ + kTokens; }

  /// The step that adds the next `count` ids.
  StepInput step(int64_t count) const {
    StepInput input;
    input.input = Ids(tokens_.begin() + held_, tokens_.begin() + held_ + count);
    input.position = held_;
    input.more = count < missing();
    input.mode = decodes() ? CacheMode::kDecode : CacheMode::kPrefill;
    input.session = session();
    input.epoch = epoch_;
    return input;
  }

  void served(int64_t count, std::optional<int64_t> token) {
    held_ += count;
    if (token) tokens_.push_back(*token);
  }
  /// All has to be prefilled again; a released session is over, so under another id.
  void missed(const std::string& reason) {
    held_ = 0;
    if (reason == "released") ++released_;
  }
  void reroute() {
    held_ = 0;
    ++epoch_;
  }

 private:
  std::string name_;
  Ids tokens_;
  std::size_t prompt_;
  int64_t held_ = 0;
  int64_t epoch_ = 1;
  int released_ = 0;
};

std::vector<Generation> generations(const std::string& name) {
  Random random = seeded(7);
  std::vector<Generation> all;
  for (int i = 0; i < kGenerations; ++i) {
    Ids prompt(static_cast<std::size_t>(pick(random, 1, 40)));
    for (int64_t& id : prompt) id = pick(random, 3, kVocab - 1);
    all.emplace_back(name + std::to_string(i), std::move(prompt));
  }
  return all;
}

/// Both nodes on this thread, one step of several sessions after the other.
class Route {
 public:
  explicit Route(Dtype dtype = Dtype::kFloat32) : head(load(0, dtype)), tail(load(1, dtype)) {}

  struct Member {
    Generation* generation;
    int64_t count;  ///< ids to add
  };

  /// Carries the next step of each as one batch over both nodes. Returns the seams: what the head
  /// made, empty for a miss there.
  std::vector<HiddenStates> carry(const std::vector<Member>& members) {
    std::vector<StepInput> inputs;
    for (const auto& [generation, count] : members) {
      head->admit(generation->session(), generation->epoch());
      inputs.push_back(generation->step(count));
    }
    std::vector<StepResult> results = head->step(inputs);

    std::vector<HiddenStates> seams(members.size());
    std::vector<StepInput> onward;
    std::vector<Member> carried;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (missed(*members[i].generation, results[i])) continue;
      seams[i] = std::get<HiddenStates>(std::get<StepOutput>(std::move(results[i])));
      tail->admit(inputs[i].session, inputs[i].epoch);
      onward.push_back(after(inputs[i], seams[i]));
      carried.push_back(members[i]);
    }
    results = tail->step(onward);
    for (std::size_t i = 0; i < carried.size(); ++i) {
      auto& [generation, count] = carried[i];
      if (missed(*generation, results[i])) continue;
      generation->served(count, std::get<std::optional<int64_t>>(std::get<StepOutput>(results[i])));
    }
    return seams;
  }

  void release(const std::string& session) {
    head->release(session);
    tail->release(session);
  }

  std::unique_ptr<Engine> head, tail;
  std::map<std::string, int> misses;

 private:
  bool missed(Generation& generation, const StepResult& result) {
    const auto* error = std::get_if<std::exception_ptr>(&result);
    if (!error) return false;
    const std::string reason = miss_reason(*error);
    ++misses[reason];
    generation.missed(reason);
    return true;
  }
};

/// Each generation's answer when nothing else runs: one whole prefill, then decodes.
const std::vector<Ids>& serial_answers() {
  static const std::vector<Ids> kAnswers = [] {
    Route route;
    std::vector<Ids> made;
    for (Generation& generation : generations("serial")) {
      while (!generation.done()) route.carry({{&generation, generation.missing()}});
      route.release(generation.session());
      made.push_back(generation.answer());
    }
    EXPECT_THAT(route.misses, testing::IsEmpty());
    return made;
  }();
  return kAnswers;
}

void expect_empty(Engine& engine) {
  const CacheStatus status = engine.cache_status();
  EXPECT_EQ(status.total_bytes, 0);
  EXPECT_THAT(status.sessions, testing::IsEmpty());
}

/// How much of what is missing goes in the next step: all of it half the time, else a chunk.
int64_t some(Random& random, const Generation& generation) {
  return pick(random, 0, 1) == 0 ? generation.missing() : pick(random, 1, generation.missing());
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
    expect_empty(*route.head);
    expect_empty(*route.tail);
  }
}

/// One node: an engine on its compute thread, which takes waiting decodes as one batch.
class Node {
 public:
  explicit Node(int index) : thread_([this, index] { run(index); }) { loaded_.get_future().get(); }
  ~Node() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  StepResult step(StepInput input) {
    std::future<StepResult> result;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({std::move(input), {}});
      result = queue_.back().done.get_future();
    }
    changed_.notify_all();
    return result.get();
  }
  Engine& engine() { return *engine_; }
  std::size_t largest_batch() const { return largest_batch_; }

 private:
  struct Waiting {
    StepInput input;
    std::promise<StepResult> done;
  };

  void run(int index) {
    engine_ = load(index);
    loaded_.set_value();
    while (true) {
      std::vector<Waiting> batch = take_batch();
      if (batch.empty()) return;
      std::vector<StepInput> inputs;
      for (Waiting& waiting : batch) inputs.push_back(std::move(waiting.input));
      std::vector<StepResult> results = engine_->step(inputs);
      for (std::size_t i = 0; i < batch.size(); ++i) batch[i].done.set_value(std::move(results[i]));
      largest_batch_ = std::max(largest_batch_.load(), batch.size());
    }
  }

  std::vector<Waiting> take_batch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    std::vector<Waiting> batch;
    for (auto next = queue_.begin(); next != queue_.end() && batch.size() < kMaxBatch;) {
      const bool decode = next->input.mode == CacheMode::kDecode;
      if (!batch.empty() && !decode) {
        ++next;
        continue;
      }
      batch.push_back(std::move(*next));
      next = queue_.erase(next);
      if (!decode) break;
    }
    return batch;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_;
  bool stopping_ = false;
  std::unique_ptr<Engine> engine_;
  std::promise<void> loaded_;
  std::atomic<std::size_t> largest_batch_ = 0;
  std::thread thread_;
};

/// One step over both nodes; "" or the reason of a miss.
std::string carry(Node& head, Node& tail, Generation& generation, int64_t count) {
  const StepInput input = generation.step(count);
  head.engine().admit(input.session, input.epoch);
  StepResult result = head.step(input);
  if (auto* seam = std::get_if<StepOutput>(&result)) {
    tail.engine().admit(input.session, input.epoch);
    result = tail.step(after(input, std::get<HiddenStates>(std::move(*seam))));
  }
  if (const auto* error = std::get_if<std::exception_ptr>(&result)) {
    std::string reason = miss_reason(*error);
    generation.missed(reason);
    return reason;
  }
  generation.served(count, std::get<std::optional<int64_t>>(std::get<StepOutput>(result)));
  return "";
}

TEST(IsolationTest, SixteenSessionsOnThreadsOfTheirOwn) {
  const auto& expected = serial_answers();
  Node head(0), tail(1);
  auto all = generations("threaded");
  std::mutex mutex;  // of the two below
  std::map<std::string, int> misses;
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
        (random() % 2 == 0 ? head : tail).engine().release(victim);
        EXPECT_GE(head.engine().cache_status().total_bytes, 0);
        tail.engine().cache_status();
      }
      const std::string reason = carry(head, tail, generation, some(random, generation));
      const std::lock_guard lock(mutex);
      if (!reason.empty()) ++misses[reason];
    }
    head.engine().release(generation.session());
    tail.engine().release(generation.session());
  };
  std::vector<std::future<void>> threads;
  for (std::size_t i = 0; i < all.size(); ++i) {
    threads.push_back(std::async(std::launch::async, drive, i));
  }
  for (auto& thread : threads) thread.get();

  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].answer(), expected[i]) << i;
  EXPECT_GT(misses["evicted_lru"], 0);
  EXPECT_GT(misses["released"], 0);
  EXPECT_GT(tail.largest_batch(), 1U);
  // A release reached one node only: what the other still has goes as an orphan would, by its id.
  for (Node* node : {&head, &tail}) {
    for (const SessionStatus& left : node->engine().cache_status().sessions) {
      node->engine().release(left.id);
    }
    expect_empty(node->engine());
  }
}

std::vector<float> values(const HiddenStates& hidden) {
  std::vector<float> floats(static_cast<std::size_t>(hidden.tokens * hidden.hidden_size));
  const std::size_t size = size_of(hidden.dtype);  // of bfloat16: the upper half of a float
  for (std::size_t i = 0; i < floats.size(); ++i) {
    std::memcpy(
        reinterpret_cast<char*>(&floats[i]) + 4 - size, hidden.bytes.data() + i * size, size);
  }
  return floats;
}

/// The largest difference, as a fraction of the largest expected value.
float relative_error(const HiddenStates& actual, const HiddenStates& expected) {
  const auto a = values(actual), b = values(expected);
  if (a.size() != b.size()) return INFINITY;
  float difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

/// The seams and ids of the first generation: alone, or with four others that are at other lengths.
struct Course {
  std::vector<HiddenStates> seams;
  Ids answer;
};
enum class Company { kNone, kBeside, kPacked };

Course run(Dtype dtype, Company company, const Course* forced = nullptr) {
  Route route(dtype);
  auto all = generations("course");
  Course course;
  for (std::size_t round = 0; !all[0].done(); ++round) {
    std::vector<Route::Member> batch = {{all.data(), all[0].missing()}};
    for (std::size_t other = 1; other < kMaxBatch && company != Company::kNone; ++other) {
      if (all[other].done()) continue;
      const Route::Member member{&all[other], all[other].missing()};
      if (company == Company::kPacked) {
        batch.push_back(member);
      } else {
        route.carry({member});
      }
    }
    course.seams.push_back(route.carry(batch)[0]);
    if (forced && all[0].answer().back() != forced->answer[round]) break;  // rounded otherwise
  }
  EXPECT_THAT(route.misses, testing::IsEmpty());
  course.answer = all[0].answer();
  return course;
}

TEST(IsolationTest, BatchesOfOneAreTheSameBesideAnyCompany) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    const Course alone = run(dtype, Company::kNone);
    const Course beside = run(dtype, Company::kBeside);
    EXPECT_EQ(beside.answer, alone.answer);
    ASSERT_EQ(beside.seams.size(), alone.seams.size());
    for (std::size_t i = 0; i < alone.seams.size(); ++i) {
      EXPECT_EQ(beside.seams[i].bytes, alone.seams[i].bytes) << to_string(dtype) << ", step " << i;
    }
  }
}

TEST(IsolationTest, PackedBatchesAreWithinTheTolerance) {
  for (const auto& [dtype, tolerance] :
       {std::pair{Dtype::kFloat32, 1e-4F}, std::pair{Dtype::kBFloat16, 0.04F}}) {
    const Course alone = run(dtype, Company::kNone);
    const Course packed = run(dtype, Company::kPacked, &alone);
    if (dtype == Dtype::kFloat32) {
      EXPECT_EQ(packed.answer, alone.answer);
    }
    float worst = 0;
    for (std::size_t i = 0; i < packed.seams.size(); ++i) {
      worst = std::max(worst, relative_error(packed.seams[i], alone.seams[i]));
    }
    EXPECT_LT(worst, tolerance) << to_string(dtype);
    EXPECT_GT(packed.seams.size(), 4U);
    RecordProperty("worst_" + std::string(to_string(dtype)), std::to_string(worst));
  }
}

/// Two sessions prefilled, then one decode of both at the tail, packed; `spoil` makes the second's
/// seam non-finite. Its state is gone then.
int64_t decoded_beside(Dtype dtype, bool spoil) {
  Route route(dtype);
  auto all = generations("beside");
  route.carry({{all.data(), all[0].missing()}, {&all[1], all[1].missing()}});
  const std::vector<StepInput> heads = {all[0].step(1), all[1].step(1)};
  auto seams = route.head->step(heads);
  std::vector<StepInput> tails;
  for (std::size_t i = 0; i < 2; ++i) {
    auto hidden = std::get<HiddenStates>(std::get<StepOutput>(seams[i]));
    if (spoil && i == 1) std::ranges::fill(hidden.bytes, '\xff');  // NaN in every dtype
    tails.push_back(after(heads[i], std::move(hidden)));
  }
  auto results = route.tail->step(tails);
  if (spoil) {
    try {
      std::rethrow_exception(std::get<std::exception_ptr>(results[1]));
    } catch (const HttpError& error) {
      EXPECT_EQ(error.error, "non_finite_logits");
    }
    const CacheStatus status = route.tail->cache_status();
    EXPECT_EQ(status.sessions.size(), 1U);
    EXPECT_EQ(status.sessions[0].tokens, all[0].held() + 1);
    results[1] = route.tail->step(std::vector{tails[1]})[0];
    EXPECT_EQ(miss_reason(std::get<std::exception_ptr>(results[1])), "unknown_session");
  }
  return *std::get<std::optional<int64_t>>(std::get<StepOutput>(results[0]));
}

TEST(IsolationTest, AStepThatIsNotFiniteHarmsItsOwnSessionOnly) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16}) {
    EXPECT_EQ(decoded_beside(dtype, true), decoded_beside(dtype, false)) << to_string(dtype);
  }
}

}  // namespace
}  // namespace meshnet
