#include "models/safetensors.h"

#include <gmock/gmock.h>

#include <array>
#include <cstddef>

#include "support.h"

namespace meshnet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

/// The message for a file of these bytes.
std::string refusal_of(const std::string& bytes) {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "x.safetensors";
  write_text(path, bytes);
  const std::string message = message_of([&] { SafetensorsFile file(path); });
  EXPECT_THAT(message, HasSubstr(path.string()));
  return message;
}

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\1');
}

TEST(Safetensors, GivesEachTensorAsItLies) {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "x.safetensors";
  write_text(path,
             file_of(R"({"__metadata__": {"format": "pt"},
                         "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
                         "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
                         "none": {"dtype": "F16", "shape": [0, 5], "data_offsets": [8, 8]},
                         "odd": {"dtype": "F4", "shape": [2], "data_offsets": [11, 12]}})",
                     12));
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 4U);
  const StoredTensor& a = file.tensors().at("a");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_THAT(a.shape, ElementsAre(1, 2));
  EXPECT_EQ(a.nbytes, 8U);
  const StoredTensor& b = file.tensors().at("b");
  EXPECT_EQ(b.begin, a.begin + 8);
  std::array<std::byte, 2> last{};
  file.read(b, 1, last);
  EXPECT_THAT(last, ElementsAre(std::byte{1}, std::byte{1}));
}

TEST(Safetensors, AFileThatBecameShorterIsNamed) {
  const TemporaryDirectory dir;
  const auto path = dir.path() / "x.safetensors";
  write_text(path, file_of(R"({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}})", 9));
  const SafetensorsFile file(path);
  const StoredTensor& a = file.tensors().at("a");
  std::filesystem::resize_file(path, a.begin + 5);
  std::array<std::byte, 9> bytes{};
  EXPECT_THAT(message_of([&] { file.read(a, 0, bytes); }),
              AllOf(HasSubstr(path.string()), HasSubstr("shorter")));
}

TEST(Safetensors, RefusesFilesThatAreNone) {
  EXPECT_THAT(refusal_of(""), HasSubstr("not a safetensors file"));
  EXPECT_THAT(refusal_of("1234567"), HasSubstr("not a safetensors file"));
  EXPECT_THAT(refusal_of(length_bytes(1)), HasSubstr("header of 1 bytes"));
  EXPECT_THAT(refusal_of(length_bytes(~uint64_t{0}) + "{}"), HasSubstr("header of"));
  EXPECT_THAT(refusal_of(length_bytes(200'000'000) + "{}"), HasSubstr("header of 200000000"));
  EXPECT_THAT(refusal_of(file_of("{\"a\": ", 0)), HasSubstr("parse error"));
  EXPECT_THAT(refusal_of(file_of("[]", 0)), HasSubstr("JSON object"));
  EXPECT_THAT(refusal_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
              HasSubstr("not a safetensors file"));
  const TemporaryDirectory dir;
  EXPECT_THAT(message_of([&] { SafetensorsFile file(dir.path()); }),
              HasSubstr(dir.path().string()));
  EXPECT_THAT(message_of([&] { SafetensorsFile file(dir.path() / "nothing"); }),
              HasSubstr("cannot be opened"));
}

TEST(Safetensors, RefusesEntriesThatDoNotFit) {
  struct Case {
    const char* entry;
    std::size_t data_bytes;
    const char* complaint;
  };
  for (const auto& [entry, data_bytes, complaint] : std::vector<Case>{
           {R"(5)", 0, "data_offsets"},
           {R"({"dtype": "F32", "shape": [1]})", 4, "data_offsets"},
           {R"({"dtype": 3, "shape": [1], "data_offsets": [0, 4]})", 4, "dtype"},
           {R"({"dtype": "F32", "shape": 1, "data_offsets": [0, 4]})", 4, "shape"},
           {R"({"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]})", 4, "data_offsets"},
           {R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})", 4, "got -1"},
           {R"({"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]})", 4, "got 1.5"},
           {R"({"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]})", 4, "shape"},
           {R"({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]})", 4, "got 4 to 0"},
           {R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]})", 4, "within 4 bytes"},
           {R"({"dtype": "F32", "shape": [1], "data_offsets": [18446744073709551612, 0]})",
            4,
            "data_offsets"},
           {R"({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})", 4, "shape [2]"},
           {R"({"dtype": "BF16", "shape": [1], "data_offsets": [0, 4]})", 4, "BF16"},
           {R"({"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]})",
            0,
            "64 bits"},
           {R"({"dtype": "F32", "shape": [4611686018427387904], "data_offsets": [0, 0]})",
            0,
            "do not fit"},
       }) {
    const std::string message =
        refusal_of(file_of(std::string(R"({"some.weight": )") + entry + "}", data_bytes));
    EXPECT_THAT(message, AllOf(HasSubstr("some.weight"), HasSubstr(complaint))) << entry;
  }
}

TEST(Safetensors, RefusesOverlapsHolesAndLeftovers) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": )") + first +
           R"(}, "b": {"dtype": "U8", "shape": [4], "data_offsets": )" + second + "}}";
  };
  EXPECT_THAT(refusal_of(file_of(two("[0, 4]", "[2, 6]"), 6)), HasSubstr("b: data_offsets"));
  EXPECT_THAT(refusal_of(file_of(two("[0, 4]", "[0, 4]"), 4)), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal_of(file_of(two("[6, 10]", "[0, 4]"), 10)), HasSubstr("a: data_offsets"));
  EXPECT_THAT(refusal_of(file_of(two("[0, 4]", "[4, 8]"), 9)), HasSubstr("1 bytes at the end"));
  EXPECT_THAT(refusal_of(file_of(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                             "a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})",
                                 8)),
              HasSubstr("a: data_offsets"))
      << "the same name twice";
}

}  // namespace
}  // namespace meshnet
