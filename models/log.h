#pragma once

#include <string>

/// What the folder has to say to the operator, through spdlog's default logger. Apart from the
/// rest (own target, no Torch): LibTorch ships another version of fmt than the one spdlog was built
/// with, so no file may see both.
namespace meshnet {

void log_notice(const std::string& message);
void log_warning(const std::string& message);

}  // namespace meshnet
