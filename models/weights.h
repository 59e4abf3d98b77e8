#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/load_progress.h"
#include "models/quantization.h"
#include "models/safetensors.h"
#include "models/weight_arena.h"
#include "models/weight_copy.h"

namespace meshnet {

/// The tensors of a model directory by name: those of model.safetensors.index.json, or else of
/// model.safetensors. The index is the truth: a file or tensor it does not list is not there. A
/// file is opened when its first tensor is asked for, so a node needs only the files of its own.
class Checkpoint {
 public:
  /// Throws std::runtime_error where the directory has neither file.
  explicit Checkpoint(const std::filesystem::path& model_dir);

  struct Entry {
    const SafetensorsFile& file;
    const StoredTensor& tensor;
  };
  /// Throws std::runtime_error naming the tensor, and the file that lacks it or is missing.
  Entry find(const std::string& name);
  bool has(const std::string& name) const { return file_of_.contains(name); }
  /// Every tensor's name, of all nodes.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path model_dir_;
  std::filesystem::path listing_;               ///< the file the names come from, for messages
  std::map<std::string, std::string> file_of_;  ///< tensor name → file name
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

/// A cursor into a checkpoint, at a prefix: what a layer is built from. Each tensor goes from its
/// file to its place piece by piece, converted to the compute dtype on the way, so loading never
/// holds more than the slice and a few pieces. A load that takes long is told of in the log.
class Weights {
 public:
  /// `checkpoint` and the cursors made from this one must not outlive it. On the meta device
  /// everything is checked and nothing is copied. With `fp8_blocks` F8_E4M3 matrices are
  /// dequantised; without, they are refused as every dtype but F32, BF16 and F16.
  Weights(Checkpoint& checkpoint,
          at::ScalarType dtype,
          at::Device device,
          std::optional<Fp8Blocks> fp8_blocks = std::nullopt);

  /// The cursor one step further down: name "self_attn" for "self_attn.*".
  Weights at(std::string_view name) const;

  /// Whether the checkpoint lists the tensor.
  bool has(std::string_view name) const { return checkpoint_->has(prefix_ + std::string(name)); }
  /// The tensor, of exactly this shape. Throws std::runtime_error with file, full name, expected
  /// and got.
  at::Tensor get(std::string_view name, at::IntArrayRef shape) const;
  /// The same, into memory that is there already: `into` is contiguous and has the shape.
  void load(std::string_view name, const at::Tensor& into) const;
  /// Room for a tensor of the compute dtype, to load() parts into.
  at::Tensor empty(at::IntArrayRef shape) const;

  /// Full names of everything loaded through this cursor or one related to it, with the scales of
  /// FP8 weights.
  const std::set<std::string>& used() const { return totals_->used; }
  /// Bytes handed out by get() and empty().
  int64_t nbytes() const { return totals_->nbytes; }

 private:
  struct Totals {
    std::set<std::string> used;
    int64_t nbytes = 0;
    WeightArena arena;
    WeightCopier copier;
    LoadProgress progress{LoadProgress::Clock::now()};
  };

  void load_fp8(const std::string& full_name,
                const Checkpoint::Entry& weight,
                const at::Tensor& into) const;

  Checkpoint* checkpoint_;
  std::string prefix_;
  at::ScalarType dtype_;
  at::Device device_;
  std::optional<Fp8Blocks> fp8_blocks_;
  std::shared_ptr<Totals> totals_;
};

}  // namespace meshnet
