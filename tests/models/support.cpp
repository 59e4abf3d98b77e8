#include "support.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "models/safetensors.h"

namespace meshnet {
namespace {

const std::map<std::string, at::ScalarType> kScalarTypes{{"F32", at::kFloat},
                                                         {"BF16", at::kBFloat16},
                                                         {"F16", at::kHalf},
                                                         {"I8", at::kChar},
                                                         {"I64", at::kLong},
                                                         {"F8_E4M3", at::kFloat8_e4m3fn}};

std::string format_name(at::ScalarType dtype) {
  for (const auto& [name, scalar_type] : kScalarTypes) {
    if (scalar_type == dtype) return name;
  }
  throw std::logic_error("no safetensors name for this dtype");
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "meshnet-test-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed for " + name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() { std::filesystem::remove_all(path_); }

std::filesystem::path path_from_environment(const char* name) {
  const char* value = std::getenv(name);
  if (!value) throw std::runtime_error(std::string(name) + " is not set: run the tests with ctest");
  return value;
}

std::filesystem::path tiny_model(const std::string& name) {
  return path_from_environment("MESHNET_TINY_MODELS") / name;
}

Tensors tiny_golden(const std::string& name) {
  return read_safetensors(tiny_model(name + ".golden.safetensors"));
}

std::vector<std::string> tiny_models() {
  return {"dense",
          "tied",
          "llama3",
          "linear",
          "yarn",
          "longrope",
          "dynamic",
          "biases",
          "mistral",
          "mistral_window",
          "qwen2",
          "qwen2_window",
          "qwen3",
          "qwen3_moe",
          "qwen3_moe_unnormed",
          "qwen3_next",
          "qwen3_5",
          "qwen3_5_moe",
          "gemma3",
          "gemma3_multimodal",
          "qwen3_5_moe_multimodal"};
}

std::vector<std::vector<int64_t>> cuts_of(int64_t layers) {
  std::vector<std::vector<int64_t>> cuts{{}};
  for (int64_t cut = 1; cut < layers; ++cut) cuts.push_back({cut});
  for (const auto& [first, second] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 2}, {1, layers - 1}, {2, 3}, {layers / 2, layers - 1}}) {
    if (first < second) cuts.push_back({first, second});
  }
  std::vector<int64_t> everywhere(static_cast<std::size_t>(layers - 1));
  std::iota(everywhere.begin(), everywhere.end(), 1);
  cuts.push_back(everywhere);
  return cuts;
}

Tensors read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Tensors tensors;
  for (const auto& [name, stored] : file.tensors()) {
    at::Tensor tensor = at::empty(stored.shape, kScalarTypes.at(stored.dtype));
    file.read(stored, 0, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    tensors.emplace(name, tensor);
  }
  return tensors;
}

void write_safetensors(const std::filesystem::path& path, const Tensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::size_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = end;
    end += tensor.nbytes();
    header[name] = {{"dtype", format_name(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {begin, end}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor data = tensor.contiguous();
    file.write(static_cast<const char*>(data.const_data_ptr()),
               static_cast<std::streamsize>(data.nbytes()));
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

void copy_model(const std::string& name,
                const std::filesystem::path& to,
                const std::function<void(nlohmann::json& config, Tensors& tensors)>& change) {
  nlohmann::json config = read_json(tiny_model(name) / "config.json");
  Tensors tensors = read_safetensors(tiny_model(name) / "model.safetensors");
  change(config, tensors);
  write_text(to / "config.json", config.dump(2));
  write_safetensors(to / "model.safetensors", tensors);
}

ModelSlice load_slice(const std::filesystem::path& model_dir,
                      LayerRange layers,
                      at::ScalarType dtype) {
  return ModelSlice(model_dir, read_config(model_dir), layers, dtype, at::kCPU);
}

ModelSlice load_whole(const std::filesystem::path& model_dir, at::ScalarType dtype) {
  const ModelConfig config = read_config(model_dir);
  return ModelSlice(model_dir, config, {0, config.num_hidden_layers}, dtype, at::kCPU);
}

at::Tensor run_route(const std::vector<const ModelSlice*>& route, const at::Tensor& input_ids) {
  at::Tensor hidden_states = route.front()->embed(input_ids);
  for (const ModelSlice* slice : route) {
    hidden_states =
        slice->forward(hidden_states, {{0, input_ids.size(0), 0}}, slice->layers().first);
  }
  return route.back()->logits(hidden_states);
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor reference = expected.to(at::kDouble);
  return ((actual.to(at::kDouble) - reference).abs().max() / reference.abs().max()).item<double>();
}

}  // namespace meshnet
