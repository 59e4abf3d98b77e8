// What a sequence's arithmetic has to do with the others in its batch.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <variant>

#include "net/http_error.h"
#include "tests/runtime/isolation.h"

namespace meshnet {
namespace {

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
