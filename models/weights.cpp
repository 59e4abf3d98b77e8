#include "models/weights.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/json_reader.h"
#include "models/log.h"

namespace meshnet {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// The index's weight_map, tensor name → file name. A name with a folder in it could point
/// anywhere.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  nlohmann::json index;
  try {
    index = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw std::runtime_error(path.string() + ": not JSON: " + error.what());
  }
  const JsonReader root(index, path.string());
  const auto weight_map = root.object("weight_map");
  if (!weight_map) root.fail("weight_map", "an object");
  std::map<std::string, std::string> result;
  for (const auto& [name, value] : weight_map->value().items()) {
    const std::string file_name = weight_map->string(name);
    if (file_name.find('/') != std::string::npos || !file_name.ends_with(".safetensors")) {
      weight_map->fail(name, "the name of a .safetensors file beside the index");
    }
    result.emplace(name, file_name);
  }
  return result;
}

std::runtime_error weight_error(const Checkpoint::Entry& entry,
                                const std::string& name,
                                const std::string& complaint) {
  return std::runtime_error(c10::str(entry.file.path().string(), ": ", name, ": ", complaint));
}

void check_shape(const Checkpoint::Entry& entry, const std::string& name, at::IntArrayRef shape) {
  const at::IntArrayRef stored = entry.tensor.shape;
  if (stored == shape) return;
  throw weight_error(entry, name, c10::str("expected shape ", shape, ", got ", stored));
}

/// The dtype of a weight that is stored as it is.
at::ScalarType plain_dtype(const Checkpoint::Entry& entry, const std::string& name) {
  const std::string& dtype = entry.tensor.dtype;
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  throw weight_error(entry, name, "expected dtype F32, BF16 or F16, got " + dtype);
}

/// Where the scale lies that kernels for FP8 products round the activations with, if there is one.
std::string activation_scale_name(std::string_view weight_name) {
  constexpr std::string_view kWeight = ".weight";
  if (!weight_name.ends_with(kWeight)) return c10::str(weight_name, "_activation_scale");
  weight_name.remove_suffix(kWeight.size());
  return c10::str(weight_name, ".activation_scale");
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& model_dir)
    : model_dir_(model_dir), listing_(model_dir / kIndexFile) {
  if (std::filesystem::exists(listing_)) {
    file_of_ = read_weight_map(listing_);
    return;
  }
  listing_ = model_dir / kSingleFile;
  if (!std::filesystem::exists(listing_)) {
    throw std::runtime_error(c10::str(model_dir_.string(),
                                      ": has neither ",
                                      kIndexFile,
                                      " nor ",
                                      kSingleFile,
                                      "; weights must be in the safetensors format"));
  }
  const auto& file = *(files_[kSingleFile] = std::make_unique<SafetensorsFile>(listing_));
  for (const auto& [name, tensor] : file.tensors()) file_of_.emplace(name, kSingleFile);
}

Checkpoint::Entry Checkpoint::find(const std::string& name) {
  const auto listed = file_of_.find(name);
  if (listed == file_of_.end()) {
    throw std::runtime_error(c10::str(listing_.string(), ": ", name, ": missing"));
  }
  const std::filesystem::path path = model_dir_ / listed->second;
  auto& file = files_[listed->second];
  if (!file) {
    if (!std::filesystem::exists(path)) {
      throw std::runtime_error(
          c10::str(path.string(), ": missing; ", kIndexFile, " says that it holds ", name));
    }
    file = std::make_unique<SafetensorsFile>(path);
  }
  const auto tensor = file->tensors().find(name);
  if (tensor == file->tensors().end()) {
    throw std::runtime_error(
        c10::str(path.string(), ": ", name, ": missing, although ", kIndexFile, " lists it there"));
  }
  return {*file, tensor->second};
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> result;
  for (const auto& [name, file] : file_of_) result.push_back(name);
  return result;
}

Weights::Weights(Checkpoint& checkpoint,
                 at::ScalarType dtype,
                 at::Device device,
                 std::optional<Fp8Blocks> fp8_blocks)
    : checkpoint_(&checkpoint),
      dtype_(dtype),
      device_(device),
      fp8_blocks_(fp8_blocks),
      totals_(std::make_shared<Totals>()) {}

Weights Weights::at(std::string_view name) const {
  Weights result = *this;
  result.prefix_ += name;
  result.prefix_ += '.';
  return result;
}

at::Tensor Weights::empty(at::IntArrayRef shape) const {
  at::Tensor tensor = device_.is_cpu()
                          ? totals_->arena.empty(shape, dtype_)
                          : at::empty(shape, at::TensorOptions(dtype_).device(device_));
  totals_->nbytes += static_cast<int64_t>(tensor.nbytes());
  return tensor;
}

at::Tensor Weights::get(std::string_view name, at::IntArrayRef shape) const {
  at::Tensor tensor = empty(shape);
  load(name, tensor);
  return tensor;
}

void Weights::load(std::string_view name, const at::Tensor& into) const {
  const std::string full_name = prefix_ + std::string(name);
  const Checkpoint::Entry entry = checkpoint_->find(full_name);
  check_shape(entry, full_name, into.sizes());
  if (entry.tensor.dtype == "F8_E4M3" && fp8_blocks_ && into.dim() >= 2) {
    load_fp8(full_name, entry, into);
  } else {
    const at::ScalarType stored_dtype = plain_dtype(entry, full_name);
    if (!into.is_meta()) totals_->copier.copy(entry.file, entry.tensor, stored_dtype, into);
  }
  totals_->used.insert(full_name);
  if (into.is_meta()) return;
  const auto line = totals_->progress.add(
      full_name, static_cast<int64_t>(into.nbytes()), LoadProgress::Clock::now());
  if (line) log_notice(c10::str(entry.file.path().parent_path().string(), ": ", *line));
}

void Weights::load_fp8(const std::string& full_name,
                       const Checkpoint::Entry& weight,
                       const at::Tensor& into) const {
  const std::string scale_name = full_name + "_scale_inv";
  const Checkpoint::Entry scale = checkpoint_->find(scale_name);
  check_shape(scale, scale_name, scale_shape(*fp8_blocks_, weight.tensor.shape));
  const at::ScalarType scale_dtype = plain_dtype(scale, scale_name);
  if (!into.is_meta()) {
    const at::Tensor scales = at::empty(scale.tensor.shape, at::kFloat);
    totals_->copier.copy(scale.file, scale.tensor, scale_dtype, scales);
    totals_->copier.dequantize(weight.file, weight.tensor, *fp8_blocks_, scales, into);
  }
  totals_->used.insert({scale_name, activation_scale_name(full_name)});
}

}  // namespace meshnet
