#include "models/device_copy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace meshnet {
namespace {

TEST(DeviceCopy, NothingIsCopiedOnACpu) {
  const at::Tensor tensor = at::arange(6);
  EXPECT_TRUE(to_device(tensor, at::kCPU).is_same(tensor));
  EXPECT_TRUE(to_host(tensor).is_same(tensor));
  EXPECT_FALSE(empty_on_host({2, 3}, at::kHalf, at::kCPU).is_pinned());
}

TEST(DeviceCopy, ThereAndBackThroughPinnedMemory) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const at::Device device(at::kCUDA, 0);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kLong}) {
    const at::Tensor values = at::randint(-100, 100, {300, 7}, dtype);
    const at::Tensor host = empty_on_host(values.sizes(), dtype, device);
    EXPECT_TRUE(host.is_pinned());
    host.copy_(values);
    const at::Tensor there = to_device(host, device);
    EXPECT_TRUE(there.is_cuda());
    const at::Tensor back = to_host(there + 0);  // after what the stream was given before
    EXPECT_TRUE(back.is_pinned());
    EXPECT_TRUE(at::equal(back, values));
  }
}

}  // namespace
}  // namespace meshnet
