#include "models/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "models/json_reader.h"

namespace meshnet {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
// Large enough that its overhead is nothing, small beside any bound on memory.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
// For files whose tensors lie at odd addresses. Small: malloc would keep what a large one leaves.
constexpr std::size_t kRealignedBytes = std::size_t{64} << 10;

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

std::optional<at::ScalarType> to_scalar_type(std::string_view dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  return std::nullopt;
}

void copy_in_pieces(const SafetensorsFile& file,
                    const StoredTensor& stored,
                    at::ScalarType stored_dtype,
                    const at::Tensor& into) {
  const std::size_t element = c10::elementSize(stored_dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(stored.data.data()) % element == 0;
  std::vector<std::byte> realigned(aligned ? 0 : kRealignedBytes);
  const std::size_t piece = aligned ? kPieceBytes : kRealignedBytes;
  const at::Tensor flat = into.view(-1);
  for (std::size_t first = 0; first < stored.data.size(); first += piece) {
    const auto bytes = stored.data.subspan(first, std::min(piece, stored.data.size() - first));
    const std::byte* source = bytes.data();
    if (!aligned) {
      std::copy(bytes.begin(), bytes.end(), realigned.begin());
      source = realigned.data();
    }
    const auto count = static_cast<int64_t>(bytes.size() / element);
    flat.narrow(0, static_cast<int64_t>(first / element), count)
        .copy_(at::from_blob(const_cast<std::byte*>(source), {count}, stored_dtype));
    file.release_pages(bytes);
  }
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

Weights::Weights(Checkpoint& checkpoint, at::ScalarType dtype, at::Device device)
    : checkpoint_(&checkpoint),
      dtype_(dtype),
      device_(device),
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
  const auto [file, stored] = checkpoint_->find(full_name);
  const auto where = c10::str(file.path().string(), ": ", full_name);
  if (into.sizes() != at::IntArrayRef(stored.shape)) {
    throw std::runtime_error(c10::str(
        where, ": expected shape ", into.sizes(), ", got ", at::IntArrayRef(stored.shape)));
  }
  const auto stored_dtype = to_scalar_type(stored.dtype);
  if (!stored_dtype) {
    throw std::runtime_error(
        c10::str(where, ": expected dtype F32, BF16 or F16, got ", stored.dtype));
  }
  if (!into.is_meta()) copy_in_pieces(file, stored, *stored_dtype, into);
  totals_->used.insert(full_name);
}

}  // namespace meshnet
