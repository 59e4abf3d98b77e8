#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/slice.h"

namespace meshnet {

using Tensors = std::map<std::string, at::Tensor>;

/// A folder that goes when the test does.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The value of an environment variable that ctest sets; throws where it is not set.
std::filesystem::path path_from_environment(const char* name);

/// What tests/golden/make_golden.py made: a model directory, and the golden tensors beside it.
std::filesystem::path tiny_model(const std::string& name);
Tensors tiny_golden(const std::string& name);
/// Their names, one or more of every family.
std::vector<std::string> tiny_models();
/// Where to cut a model of so many layers: nowhere, everywhere into two, some ways into three, and
/// into single layers.
std::vector<std::vector<int64_t>> cuts_of(int64_t layers);

/// All tensors of a file, in memory of their own.
Tensors read_safetensors(const std::filesystem::path& path);
void write_safetensors(const std::filesystem::path& path, const Tensors& tensors);
void write_text(const std::filesystem::path& path, const std::string& text);
nlohmann::json read_json(const std::filesystem::path& path);

/// A copy of a tiny model in `to`, changed on the way.
void copy_model(const std::string& name,
                const std::filesystem::path& to,
                const std::function<void(nlohmann::json& config, Tensors& tensors)>& change);

/// The slice of a model directory on the CPU.
ModelSlice load_slice(const std::filesystem::path& model_dir,
                      LayerRange layers,
                      at::ScalarType dtype = at::kFloat);
/// All layers of it.
ModelSlice load_whole(const std::filesystem::path& model_dir, at::ScalarType dtype = at::kFloat);

/// One sequence from position 0 through slices that follow one another → logits [tokens, vocab].
at::Tensor run_route(const std::vector<const ModelSlice*>& route, const at::Tensor& input_ids);

/// The message of the std::exception that `action` throws; fails the test where it throws none.
std::string message_of(const std::function<void()>& action);

/// The largest difference, as a fraction of the largest expected value.
double relative_error(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace meshnet
