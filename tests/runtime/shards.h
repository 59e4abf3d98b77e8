#pragma once

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <cstdint>
#include <memory>

#include "models/config.h"
#include "runtime/shard.h"
#include "tests/runtime/isolation.h"

namespace meshnet {

/// A loaded shard of the tiny model: node 0, the head, or 1, the tail. Runs `io` until it is there.
inline std::unique_ptr<Shard> load_shard(asio::io_context& io, int node, int64_t max_queue = 64) {
  const EngineOptions options = options_of(node);
  auto shard = std::make_unique<Shard>(
      options, read_config(options.model_dir), max_queue, int64_t{kMaxBatch});
  auto loaded = asio::co_spawn(io, shard->load(), asio::use_future);
  while (!shard->ready()) io.run_one();
  loaded.get();
  return shard;
}

}  // namespace meshnet
