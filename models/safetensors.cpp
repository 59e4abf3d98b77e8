#include "models/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace meshnet {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in files");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

/// Bytes of one element; 0 for a type that we do not know (it is refused when it is asked for).
int64_t element_size(std::string_view dtype) {
  static const std::map<std::string_view, int64_t> kSizes{{"BOOL", 1},
                                                          {"U8", 1},
                                                          {"I8", 1},
                                                          {"F8_E4M3", 1},
                                                          {"F8_E5M2", 1},
                                                          {"F8_E8M0", 1},
                                                          {"I16", 2},
                                                          {"U16", 2},
                                                          {"F16", 2},
                                                          {"BF16", 2},
                                                          {"I32", 4},
                                                          {"U32", 4},
                                                          {"F32", 4},
                                                          {"I64", 8},
                                                          {"U64", 8},
                                                          {"F64", 8}};
  const auto it = kSizes.find(dtype);
  return it == kSizes.end() ? 0 : it->second;
}

uint64_t unsigned_at(const nlohmann::json& value, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
    throw std::runtime_error(std::string(what) + ": expected whole numbers from 0, got " +
                             value.dump());
  }
  return value.get<uint64_t>();
}

/// Number of elements. Throws where the product overflows.
int64_t product(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(result, size, &result)) {
      throw std::runtime_error("shape: has more elements than 64 bits can count");
    }
  }
  return result;
}

/// One entry of the header; `data` is everything behind the header.
StoredTensor parse_entry(const nlohmann::json& entry, std::span<const std::byte> data) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    throw std::runtime_error("expected {dtype, shape, data_offsets: [begin, end]}");
  }
  StoredTensor tensor;
  tensor.dtype = entry["dtype"].get<std::string>();
  for (const auto& size : entry["shape"]) {
    tensor.shape.push_back(static_cast<int64_t>(unsigned_at(size, "shape")));
  }
  const uint64_t begin = unsigned_at(entry["data_offsets"][0], "data_offsets");
  const uint64_t end = unsigned_at(entry["data_offsets"][1], "data_offsets");
  if (begin > end || end > data.size()) {
    throw std::runtime_error("data_offsets: expected a range within " +
                             std::to_string(data.size()) + " bytes, got " + std::to_string(begin) +
                             " to " + std::to_string(end));
  }
  tensor.data = data.subspan(begin, end - begin);

  const int64_t size = element_size(tensor.dtype);
  int64_t expected = 0;
  if (size != 0 && (__builtin_mul_overflow(product(tensor.shape), size, &expected) ||
                    static_cast<uint64_t>(expected) != tensor.data.size())) {
    throw std::runtime_error("dtype " + tensor.dtype + " and shape " + entry["shape"].dump() +
                             " do not fit its " + std::to_string(tensor.data.size()) + " bytes");
  }
  return tensor;
}

/// As the reference demands: tensors neither overlap nor leave holes, and fill the file.
void check_layout(const std::map<std::string, StoredTensor>& tensors,
                  std::span<const std::byte> data) {
  std::vector<const std::pair<const std::string, StoredTensor>*> in_file_order;
  for (const auto& entry : tensors) in_file_order.push_back(&entry);
  const auto place = [](const auto* entry) {
    return std::pair(entry->second.data.data(), entry->second.data.size());
  };
  std::sort(in_file_order.begin(), in_file_order.end(), [&](const auto* a, const auto* b) {
    return place(a) < place(b);
  });
  const std::byte* next = data.data();
  for (const auto* entry : in_file_order) {
    if (entry->second.data.data() != next) {
      throw std::runtime_error(entry->first + ": data_offsets: expected to begin at " +
                               std::to_string(next - data.data()) + ", got " +
                               std::to_string(entry->second.data.data() - data.data()));
    }
    next += entry->second.data.size();
  }
  if (next != data.data() + data.size()) {
    throw std::runtime_error(std::to_string(data.data() + data.size() - next) +
                             " bytes at the end belong to no tensor");
  }
}

std::string system_message(int error) { return std::system_category().message(error); }

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  map();
  try {
    parse();
  } catch (const std::exception& error) {
    ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
    throw std::runtime_error(path_.string() + ": " + error.what());
  }
}

SafetensorsFile::~SafetensorsFile() {
  ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

void SafetensorsFile::map() {
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    throw std::runtime_error(path_.string() + ": cannot be opened: " + system_message(errno));
  }
  struct stat status{};
  void* mapping = MAP_FAILED;
  int error = 0;
  if (::fstat(file, &status) != 0) {
    error = errno;
  } else if (!S_ISREG(status.st_mode) || status.st_size < static_cast<off_t>(kLengthBytes)) {
    error = EINVAL;
  } else {
    mapping =
        ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    error = errno;
  }
  ::close(file);
  if (mapping == MAP_FAILED) {
    throw std::runtime_error(path_.string() + ": " +
                             (error == EINVAL ? "not a safetensors file: too short, or no file"
                                              : "cannot be mapped: " + system_message(error)));
  }
  mapping_ = {static_cast<const std::byte*>(mapping), static_cast<std::size_t>(status.st_size)};
}

void SafetensorsFile::parse() {
  uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(mapping_[i]) << (8 * i);
  }
  if (length > std::min(kMaxHeaderBytes, mapping_.size() - kLengthBytes)) {
    throw std::runtime_error("not a safetensors file: header of " + std::to_string(length) +
                             " bytes in a file of " + std::to_string(mapping_.size()));
  }
  const auto* text = reinterpret_cast<const char*>(mapping_.data() + kLengthBytes);
  // Of a name that stands twice the parser keeps one; the other's bytes are then a hole.
  const nlohmann::json header = nlohmann::json::parse(text, text + length);
  if (!header.is_object()) throw std::runtime_error("header: expected a JSON object");

  const auto data = mapping_.subspan(kLengthBytes + length);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      tensors_.emplace(name, parse_entry(entry, data));
    } catch (const std::exception& error) {
      throw std::runtime_error(name + ": " + error.what());
    }
  }
  check_layout(tensors_, data);
}

void SafetensorsFile::release_pages(std::span<const std::byte> data) const {
  // A page fault maps the pages around it as well, so reading this brought back some of what lies
  // before, released already.
  constexpr std::ptrdiff_t kAround = std::ptrdiff_t{2} << 20;
  const std::byte* around = data.data() - std::min(kAround, data.data() - mapping_.data());
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(around) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(data.data()) + data.size();
  // Advice only: whoever needs a neighbour's bytes reads them again, and memory is all that a
  // failure could cost.
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace meshnet
