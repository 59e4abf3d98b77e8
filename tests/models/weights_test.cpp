// What the loader is made of: progress.

#include "models/weights.h"

#include <gmock/gmock.h>

#include "models/load_progress.h"

namespace meshnet {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

TEST(LoadProgress, SpeaksEveryTenSeconds) {
  constexpr int64_t kGibi = int64_t{1} << 30;
  const LoadProgress::Clock::time_point start{};
  LoadProgress progress(start);
  EXPECT_FALSE(progress.add("a", kGibi, start + seconds(9)));
  EXPECT_THAT(
      progress.add("b", kGibi / 2, start + seconds(12)).value(),
      AllOf(HasSubstr("1.5 GiB"), HasSubstr("12 s"), HasSubstr("0.12 GiB/s"), HasSubstr("b")));
  EXPECT_FALSE(progress.add("c", kGibi, start + seconds(21)));
  EXPECT_THAT(progress.add("d", kGibi, start + seconds(22)).value(),
              AllOf(HasSubstr("3.5 GiB"), HasSubstr("up to d")));
}

}  // namespace
}  // namespace meshnet
