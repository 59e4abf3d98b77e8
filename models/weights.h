#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/safetensors.h"
#include "models/weight_arena.h"

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

/// A cursor into a checkpoint, at a prefix: what a layer is built from. Each tensor is copied (and
/// converted to the compute dtype) out of the mapping piece by piece, and the pages of a copied
/// piece are let go at once, so loading never holds more than the slice and one piece.
class Weights {
 public:
  /// `checkpoint` and the cursors made from this one must not outlive it. On the meta device
  /// everything is checked and nothing is copied.
  Weights(Checkpoint& checkpoint, at::ScalarType dtype, at::Device device);

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

  /// Full names of everything loaded through this cursor or one related to it.
  const std::set<std::string>& used() const { return totals_->used; }
  /// Bytes handed out by get() and empty().
  int64_t nbytes() const { return totals_->nbytes; }

 private:
  struct Totals {
    std::set<std::string> used;
    int64_t nbytes = 0;
    WeightArena arena;
  };

  Checkpoint* checkpoint_;
  std::string prefix_;
  at::ScalarType dtype_;
  at::Device device_;
  std::shared_ptr<Totals> totals_;
};

}  // namespace meshnet
