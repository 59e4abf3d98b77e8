#include "models/log.h"

#include <spdlog/spdlog.h>

namespace meshnet {

void log_notice(const std::string& message) { spdlog::info("{}", message); }

void log_warning(const std::string& message) { spdlog::warn("{}", message); }

}  // namespace meshnet
