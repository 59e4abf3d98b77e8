#include "tests/runtime/isolation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "models/config.h"
#include "net/http_error.h"

namespace meshnet {
namespace {

std::unique_ptr<Engine> load(int node, Dtype dtype) {
  const EngineOptions options = options_of(node, dtype);
  return std::make_unique<Engine>(options, read_config(options.model_dir));
}

}  // namespace

int64_t pick(Random& random, int64_t from, int64_t to) {
  return std::uniform_int_distribution<int64_t>(from, to)(random);
}

EngineOptions options_of(int node, Dtype dtype) {
  const char* models = std::getenv("MESHNET_TINY_MODELS");
  if (!models) throw std::runtime_error("MESHNET_TINY_MODELS is not set: run the tests with ctest");
  EngineOptions options;
  options.model_dir = std::filesystem::path(models) / "dense";
  options.layers = kLayers[node];
  options.dtype = dtype;
  options.device = "cpu";
  options.threads = 2;
  options.cache.max_sessions = kMaxSessions;
  return options;
}

std::string miss_reason(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& http) {
    if (http.error != "cache_miss") throw;
    return http.reason;
  }
}

StepInput after(const StepInput& head, HiddenStates hidden) {
  StepInput tail = head;
  tail.input = std::move(hidden);
  tail.start_layer = kCut;
  return tail;
}

std::vector<Generation> generations(const std::string& name) {
  Random random(7);  // NOLINT(bugprone-random-generator-seed): the same prompts in every run
  std::vector<Generation> all;
  for (int i = 0; i < kGenerations; ++i) {
    Ids prompt(static_cast<std::size_t>(pick(random, 1, 40)));
    for (int64_t& id : prompt) id = pick(random, 3, kVocab - 1);
    all.emplace_back(name + std::to_string(i), std::move(prompt));
  }
  return all;
}

Route::Route(Dtype dtype) : head(load(0, dtype)), tail(load(1, dtype)) {}

std::vector<HiddenStates> Route::carry(const std::vector<Member>& members) {
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

bool Route::missed(Generation& generation, const StepResult& result) {
  const auto* error = std::get_if<std::exception_ptr>(&result);
  if (!error) return false;
  const std::string reason = miss_reason(*error);
  ++misses[reason];
  generation.missed(reason);
  return true;
}

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

int64_t some(Random& random, const Generation& generation) {
  return pick(random, 0, 1) == 0 ? generation.missing() : pick(random, 1, generation.missing());
}

void expect_empty(const CacheStatus& status) {
  EXPECT_EQ(status.total_bytes, 0);
  EXPECT_THAT(status.sessions, testing::IsEmpty());
}

}  // namespace meshnet
