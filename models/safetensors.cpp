#include "models/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

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

/// One entry of the header; the data, `data_bytes` of them, begin at `data_begin` in the file.
StoredTensor parse_entry(const nlohmann::json& entry,
                         std::size_t data_begin,
                         std::size_t data_bytes) {
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
  if (begin > end || end > data_bytes) {
    throw std::runtime_error("data_offsets: expected a range within " + std::to_string(data_bytes) +
                             " bytes, got " + std::to_string(begin) + " to " + std::to_string(end));
  }
  tensor.begin = data_begin + begin;
  tensor.nbytes = end - begin;

  const int64_t size = element_size(tensor.dtype);
  int64_t expected = 0;
  if (size != 0 && (__builtin_mul_overflow(product(tensor.shape), size, &expected) ||
                    static_cast<uint64_t>(expected) != tensor.nbytes)) {
    throw std::runtime_error("dtype " + tensor.dtype + " and shape " + entry["shape"].dump() +
                             " do not fit its " + std::to_string(tensor.nbytes) + " bytes");
  }
  return tensor;
}

/// As the reference demands: tensors neither overlap nor leave holes, and fill the file.
void check_layout(const std::map<std::string, StoredTensor>& tensors,
                  std::size_t data_begin,
                  std::size_t file_bytes) {
  std::vector<const std::pair<const std::string, StoredTensor>*> in_file_order;
  for (const auto& entry : tensors) in_file_order.push_back(&entry);
  const auto place = [](const auto* entry) {
    return std::pair(entry->second.begin, entry->second.nbytes);
  };
  std::sort(in_file_order.begin(), in_file_order.end(), [&](const auto* a, const auto* b) {
    return place(a) < place(b);
  });
  std::size_t next = data_begin;
  for (const auto* entry : in_file_order) {
    if (entry->second.begin != next) {
      throw std::runtime_error(entry->first + ": data_offsets: expected to begin at " +
                               std::to_string(next - data_begin) + ", got " +
                               std::to_string(entry->second.begin - data_begin));
    }
    next += entry->second.nbytes;
  }
  if (next != file_bytes) {
    throw std::runtime_error(std::to_string(file_bytes - next) +
                             " bytes at the end belong to no tensor");
  }
}

std::runtime_error system_error(const std::string& what, int error) {
  return std::runtime_error(what + ": " + std::system_category().message(error));
}

}  // namespace

SafetensorsFile::Descriptor::Descriptor(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw system_error(path.string() + ": cannot be opened", errno);
}

SafetensorsFile::Descriptor::~Descriptor() { ::close(descriptor_); }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  try {
    parse();
  } catch (const std::exception& error) {
    throw std::runtime_error(path_.string() + ": " + error.what());
  }
}

void SafetensorsFile::read(const StoredTensor& tensor,
                           std::size_t first,
                           std::span<std::byte> into) const {
  try {
    read_at(tensor.begin + first, into);
  } catch (const std::exception& error) {
    throw std::runtime_error(path_.string() + ": " + error.what());
  }
}

void SafetensorsFile::read_at(std::size_t position, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got =
        ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(position));
    if (got == 0) {
      throw std::runtime_error("ends at byte " + std::to_string(position) +
                               ": it became shorter while it was read");
    }
    if (got < 0 && errno != EINTR) throw system_error("cannot be read", errno);
    if (got < 0) continue;
    position += static_cast<std::size_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

void SafetensorsFile::parse() {
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) throw system_error("cannot be examined", errno);
  const auto file_bytes = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || file_bytes < kLengthBytes) {
    throw std::runtime_error("not a safetensors file: too short, or no file");
  }
  std::array<std::byte, kLengthBytes> length_bytes{};
  read_at(0, length_bytes);
  const auto length = std::bit_cast<uint64_t>(length_bytes);
  if (length > std::min(kMaxHeaderBytes, file_bytes - kLengthBytes)) {
    throw std::runtime_error("not a safetensors file: header of " + std::to_string(length) +
                             " bytes in a file of " + std::to_string(file_bytes));
  }
  std::string text(length, '\0');
  read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  // Of a name that stands twice the parser keeps one; the other's bytes are then a hole.
  const nlohmann::json header = nlohmann::json::parse(text);
  if (!header.is_object()) throw std::runtime_error("header: expected a JSON object");

  const std::size_t data_begin = kLengthBytes + length;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    try {
      tensors_.emplace(name, parse_entry(entry, data_begin, file_bytes - data_begin));
    } catch (const std::exception& error) {
      throw std::runtime_error(name + ": " + error.what());
    }
  }
  check_layout(tensors_, data_begin, file_bytes);
}

}  // namespace meshnet
