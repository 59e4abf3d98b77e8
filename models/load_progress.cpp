#include "models/load_progress.h"

#include <iomanip>
#include <sstream>

namespace meshnet {

LoadProgress::LoadProgress(Clock::time_point started) : started_(started), said_(started) {}

std::optional<std::string> LoadProgress::add(std::string_view name,
                                             int64_t nbytes,
                                             Clock::time_point now) {
  constexpr std::chrono::seconds kEvery{10};
  nbytes_ += nbytes;
  if (now - said_ < kEvery) return std::nullopt;
  said_ = now;
  const double gibibytes = static_cast<double>(nbytes_) / (1 << 30);
  const std::chrono::duration<double> seconds = now - started_;
  std::ostringstream line;
  line << std::fixed << std::setprecision(1) << gibibytes << " GiB of weights in "
       << std::setprecision(0) << seconds.count() << " s (" << std::setprecision(2)
       << gibibytes / seconds.count() << " GiB/s), up to " << name;
  return line.str();
}

}  // namespace meshnet
