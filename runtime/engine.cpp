#include "runtime/engine.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "cache/session_store.h"
#include "models/device_copy.h"
#include "models/slice.h"
#include "net/http_error.h"
#include "runtime/batch.h"
#include "runtime/tensor_wire.h"

namespace meshnet {
namespace {

/// "auto", "cpu" or "cuda:N" → a device that is there.
at::Device resolve_device(const std::string& name) {
  const auto gpus = at::hasCUDA() ? static_cast<int64_t>(at::getNumGPUs()) : 0;
  if (name == "auto") return gpus > 0 ? at::Device("cuda:0") : at::Device(at::kCPU);
  const at::Device device(name);
  if (device.is_cuda() && device.index() >= gpus) {
    throw std::runtime_error(
        c10::str("device: ",
                 name,
                 " is not there: LibTorch sees ",
                 gpus,
                 " GPU(s) on this machine",
                 gpus == 0 ? "; use device: cpu, or check the driver with nvidia-smi" : ""));
  }
  return device;
}

/// What this thread gives to a GPU from now on runs on a stream of its own, the node's only one.
void take_a_stream(at::Device device) {
  if (!device.is_cuda()) return;
  const c10::impl::VirtualGuardImpl of_device(device.type());
  at::accelerator::setDeviceIndex(device.index());
  at::accelerator::setCurrentStream(of_device.getStreamFromGlobalPool(device));
}

/// The weights came over the streams of the threads that read them.
void wait_for_weights(at::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

/// Runs `function`; what LibTorch throws becomes a sentence without its C++ stack, memory that is
/// not there an HttpError 503.
template <class Function>
auto in_a_sentence(const std::string& device, Function function) {
  const auto no_memory = [&device] {
    return HttpError(503, "out_of_memory", c10::str(device, " has not enough memory for this"));
  };
  try {
    return function();
  } catch (const c10::OutOfMemoryError&) {
    throw no_memory();
  } catch (const std::bad_alloc&) {
    throw no_memory();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (message.find("can't allocate memory") != std::string::npos)
      throw no_memory();  // of the CPU allocator
    throw std::runtime_error(message);
  }
}

int64_t meminfo_bytes(std::string_view wanted) {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    int64_t kibibytes = 0;
    if (word == wanted && meminfo >> kibibytes) return kibibytes << 10;
  }
  throw std::runtime_error(c10::str("/proc/meminfo has no ", wanted));
}

HttpError to_http_error(const Miss& miss) {
  HttpError error(409, "cache_miss", miss.message);
  error.reason = to_string(miss.reason);
  return error;
}

int64_t rows_of(const StepInput& input) {
  const auto* ids = std::get_if<std::vector<int64_t>>(&input.input);
  return ids != nullptr ? static_cast<int64_t>(ids->size())
                        : std::get<HiddenStates>(input.input).tokens;
}

/// The rows of a step on the device, [tokens, hidden_size].
at::Tensor take_in(const StepInput& input,
                   const ModelSlice& slice,
                   Dtype dtype,
                   const std::string& device) {
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&input.input)) {
    const at::Tensor input_ids =
        empty_on_host({static_cast<int64_t>(ids->size())}, at::kLong, at::Device(device));
    std::ranges::copy(*ids, input_ids.mutable_data_ptr<int64_t>());
    return slice.embed(input_ids);
  }
  return to_tensor(std::get<HiddenStates>(input.input), to_scalar_type(dtype), at::Device(device));
}

/// The state that a step goes on from; none for a step that keeps none. Throws HttpError.
std::optional<SessionStore::Lease> lease(SessionStore* store,
                                         const std::string& caching_disabled,
                                         const StepInput& input,
                                         int64_t tokens) {
  const bool fresh = input.mode == CacheMode::kPrefill && input.position == 0;
  if (input.mode == CacheMode::kStateless || (fresh && store == nullptr)) return std::nullopt;
  if (store == nullptr) {
    throw to_http_error({MissReason::kCachingDisabled,
                         "this node keeps no session state, since " + caching_disabled +
                             ": send the whole sequence as a prefill"});
  }
  const SessionKey key{input.session, input.epoch};
  try {
    auto found = fresh ? store->open(key, input.start_layer, tokens)
                       : store->append(key, input.start_layer, input.position, tokens);
    if (const auto* miss = std::get_if<Miss>(&found)) throw to_http_error(*miss);
    return std::get<SessionStore::Lease>(std::move(found));
  } catch (const SessionExceedsBudget& error) {
    throw HttpError(507, "session_exceeds_budget", error.what());
  }
}

/// Bytes that cache.max_bytes: auto stands for: 80 % of a GPU's memory that the weights left (or
/// will have left), a quarter of the machine's.
int64_t state_budget(const std::string& device, int64_t weights_to_come = 0) {
  if (device == "cpu") return meminfo_bytes("MemTotal:") / 4;
  return std::max<int64_t>(0, free_memory(device) - weights_to_come) / 5 * 4;
}

/// Why a node keeps no session state, a clause for people; empty when it does.
std::string why_no_cache(const EngineOptions& options, const ModelConfig& config) {
  if (!options.cache.enabled) return "the configuration says cache.enabled: false";
  if (Recipe::is_certified(config.model_type)) return {};
  return c10::str("cached decode is not certified for ", config.model_type);
}

}  // namespace

Dtype checkpoint_dtype(const ModelConfig& config) {
  return parse_dtype(config.torch_dtype).value_or(Dtype::kFloat32);
}

std::string recipe_fingerprint(const ModelConfig& config) {
  if (!Recipe::is_certified(config.model_type)) return {};
  return Recipe(recipe_fields(config, {0, config.num_hidden_layers}, at::kFloat)).fingerprint();
}

Engine::Engine(const EngineOptions& options, const ModelConfig& config)
    : dtype_(options.dtype.value_or(checkpoint_dtype(config))) {
  const c10::InferenceMode no_gradients;
  if (options.threads > 0) at::set_num_threads(options.threads);
  const at::Device device = resolve_device(options.device);
  device_ = device.str();
  take_a_stream(device);
  slice_ = in_a_sentence(device_, [&] {
    auto slice = std::make_unique<ModelSlice>(
        options.model_dir, config, options.layers, to_scalar_type(dtype_), device);
    wait_for_weights(device);
    return slice;
  });

  caching_disabled_ = why_no_cache(options, config);
  if (!caching_disabled_.empty()) return;
  const SessionLimits limits{options.cache.ttl,
                             options.cache.max_sessions,
                             options.cache.max_bytes.value_or(state_budget(device_))};
  store_ = std::make_unique<SessionStore>(
      Recipe(recipe_fields(config, options.layers, to_scalar_type(dtype_))), limits, device);
}

Engine::~Engine() = default;

int64_t Engine::nbytes() const { return slice_->nbytes(); }

std::vector<StepResult> Engine::step(std::span<const StepInput> inputs) {
  const c10::InferenceMode no_gradients;
  Batch batch(*slice_, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    try {
      in_a_sentence(device_, [&] {
        // The lease first: whatever fails after it ends the session.
        auto leased = lease(store_.get(), caching_disabled_, inputs[i], rows_of(inputs[i]));
        at::Tensor hidden_states = take_in(inputs[i], *slice_, dtype_, device_);
        batch.add(i, std::move(hidden_states), std::move(leased));
      });
    } catch (...) {
      batch.fail(i, std::current_exception());
    }
  }
  try {
    in_a_sentence(device_, [&] { batch.run(); });
  } catch (...) {
    batch.fail_all(std::current_exception());
  }
  return batch.take_results();
}

void Engine::admit(const std::string& session, int64_t epoch) {
  if (store_ == nullptr) return;
  try {
    store_->admit({session, epoch});
  } catch (const StaleEpoch& error) {
    throw HttpError(412, "stale_route_epoch", error.what());
  }
}

bool Engine::release(std::string_view session) {
  return store_ != nullptr && store_->release(session);
}

CacheStatus Engine::cache_status() {
  CacheStatus status;
  status.disabled_reason = caching_disabled_;
  if (store_ == nullptr) return status;
  const Recipe& recipe = store_->recipe();
  const int64_t first = recipe.owned().first;
  status.enabled = true;
  status.bytes_per_token = recipe.bytes_per_token(first);
  status.fixed_bytes = recipe.fixed_bytes(first);
  status.max_bytes = store_->limits().max_bytes;
  status.total_bytes = store_->total_bytes();
  for (SessionInfo& session : store_->sessions()) {
    status.sessions.push_back({std::move(session.id),
                               session.epoch,
                               session.layers,
                               session.tokens,
                               session.bytes,
                               session.idle.count(),
                               session.in_use});
  }
  return status;
}

int64_t Engine::session_bytes(int64_t tokens) const {
  if (store_ == nullptr) return 0;
  const Recipe& recipe = store_->recipe();
  return recipe.nbytes(recipe.owned().first, tokens);
}

std::string resolve_device_name(const std::string& device) { return resolve_device(device).str(); }

int64_t free_memory(const std::string& device) {
  const at::Device where(device);
  if (where.is_cuda())
    return static_cast<int64_t>(at::accelerator::getMemoryInfo(where.index()).first);
  return meminfo_bytes("MemAvailable:");
}

CachePlan plan_cache(const EngineOptions& options,
                     const ModelConfig& config,
                     int64_t weight_bytes,
                     int64_t session_tokens) {
  CachePlan plan;
  plan.disabled_reason = why_no_cache(options, config);
  if (!plan.disabled_reason.empty()) return plan;
  const Dtype dtype = options.dtype.value_or(checkpoint_dtype(config));
  const Recipe recipe(recipe_fields(config, options.layers, to_scalar_type(dtype)));
  plan.bytes_per_token = recipe.bytes_per_token(options.layers.first);
  plan.session_bytes = recipe.nbytes(options.layers.first, session_tokens);
  plan.max_bytes = options.cache.max_bytes.value_or(
      state_budget(resolve_device_name(options.device), weight_bytes));
  return plan;
}

int64_t check_slice(const EngineOptions& options, const ModelConfig& config) {
  const auto dtype = to_scalar_type(options.dtype.value_or(checkpoint_dtype(config)));
  return in_a_sentence(options.device, [&] {
    return ModelSlice(options.model_dir, config, options.layers, dtype, at::kMeta).nbytes();
  });
}

}  // namespace meshnet
