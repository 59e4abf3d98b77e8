// load_peak MODEL_DIR FIRST LAST DTYPE: loads layers [FIRST, LAST) and prints the slice's bytes,
// the bytes by which that raised the most memory that this process ever held, and the seconds it
// took.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "models/slice.h"

namespace {

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
  }
  throw std::runtime_error("no VmHWM in /proc/self/status");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) throw std::invalid_argument("load_peak MODEL_DIR FIRST LAST DTYPE");
  const c10::InferenceMode no_gradients;
  const auto dtype = std::string_view(argv[4]) == "bfloat16" ? at::kBFloat16 : at::kFloat;
  at::ones({256, 256}).to(at::kBFloat16).to(at::kFloat).sum();  // the libraries' own share
  const int64_t before = peak_resident_bytes();
  const auto started = std::chrono::steady_clock::now();
  const meshnet::ModelSlice slice(argv[1],
                                  meshnet::read_config(argv[1]),
                                  {std::stoll(argv[2]), std::stoll(argv[3])},
                                  dtype,
                                  at::kCPU);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  std::cout << slice.nbytes() << " " << peak_resident_bytes() - before << " " << took.count()
            << "\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
