#include "runtime/engine.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <fstream>
#include <new>
#include <stdexcept>
#include <string>

#include "models/slice.h"
#include "net/http_error.h"
#include "runtime/sampler.h"
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

/// Runs `function`; what LibTorch throws becomes a sentence without its C++ stack, memory that is
/// not there an HttpError 503.
template <class Function>
auto in_words(const std::string& device, Function function) {
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

}  // namespace

Dtype checkpoint_dtype(const ModelConfig& config) {
  return parse_dtype(config.torch_dtype).value_or(Dtype::kFloat32);
}

Engine::Engine(const EngineOptions& options, const ModelConfig& config)
    : dtype_(options.dtype.value_or(checkpoint_dtype(config))) {
  const c10::InferenceMode no_gradients;
  if (options.threads > 0) at::set_num_threads(options.threads);
  const at::Device device = resolve_device(options.device);
  device_ = device.str();
  slice_ = in_words(device_, [&] {
    return std::make_unique<ModelSlice>(
        options.model_dir, config, options.layers, to_scalar_type(dtype_), device);
  });
}

Engine::~Engine() = default;

int64_t Engine::nbytes() const { return slice_->nbytes(); }

StepOutput Engine::step(const StepInput& input) {
  return in_words(device_, [&] { return run(input); });
}

StepOutput Engine::run(const StepInput& input) {
  const c10::InferenceMode no_gradients;
  const at::Device device(device_);

  at::Tensor hidden_states;
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&input.input)) {
    hidden_states = slice_->embed(at::tensor(*ids, at::kLong));
  } else {
    hidden_states = to_tensor(std::get<HiddenStates>(input.input), to_scalar_type(dtype_), device);
  }

  const int64_t tokens = hidden_states.size(0);
  hidden_states = slice_->forward(hidden_states, {{0, tokens, input.position}}, input.start_layer);
  if (!slice_->is_last()) return to_wire(hidden_states);
  if (input.more) return std::nullopt;

  const at::Tensor logits = slice_->logits(hidden_states.narrow(0, tokens - 1, 1)).squeeze(0);
  if (!at::isfinite(logits).all().item<bool>()) {
    throw HttpError(500, "non_finite_logits", "the logits of this step are not finite");
  }
  return sample(logits, input.sampling, input.position + tokens);
}

std::string resolve_device_name(const std::string& device) { return resolve_device(device).str(); }

int64_t free_memory(const std::string& device) {
  const at::Device where(device);
  if (where.is_cuda())
    return static_cast<int64_t>(at::accelerator::getMemoryInfo(where.index()).first);
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key; meminfo >> key;) {
    int64_t kibibytes = 0;
    if (key == "MemAvailable:" && meminfo >> kibibytes) return kibibytes << 10;
  }
  throw std::runtime_error("/proc/meminfo does not say how much memory is available");
}

int64_t check_slice(const EngineOptions& options, const ModelConfig& config) {
  const auto dtype = to_scalar_type(options.dtype.value_or(checkpoint_dtype(config)));
  return in_words(options.device, [&] {
    return ModelSlice(options.model_dir, config, options.layers, dtype, at::kMeta).nbytes();
  });
}

}  // namespace meshnet
