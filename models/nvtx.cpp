#include "models/nvtx.h"

#include <string>
#include <utility>

#ifdef MESHNET_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace meshnet {

#ifdef MESHNET_NVTX
namespace {

/// NVTX loads the profiler at its first call, and gives no domain when there is none.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t kHandle = nvtxDomainCreateA("meshnet");
  return kHandle;
}

nvtxEventAttributes_t to_event(const std::string& text, int64_t number) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  event.payload.llValue = number;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = text.c_str();
  return event;
}

std::string text_of(const RangeLabel& label) {
  std::string text(label.kind);
  for (const std::string_view part : {label.subject, label.session}) {
    if (!part.empty()) text.append(" ").append(part);
  }
  return text;
}

void push(const std::string& text, int64_t number) {
  const nvtxEventAttributes_t event = to_event(text, number);
  nvtxDomainRangePushEx(domain(), &event);
}

void pop() { nvtxDomainRangePop(domain()); }

uint64_t start(const std::string& text, int64_t number) {
  const nvtxEventAttributes_t event = to_event(text, number);
  return nvtxDomainRangeStartEx(domain(), &event);
}

void end(uint64_t id) { nvtxDomainRangeEnd(domain(), id); }

}  // namespace

bool profiler_attached() { return domain() != nullptr; }

ThreadRange::ThreadRange(const RangeLabel& label) : open_(profiler_attached()) {
  if (open_) push(text_of(label), label.number);
}

ThreadRange::ThreadRange(std::string_view kind, int64_t number) : open_(profiler_attached()) {
  if (open_) push(std::string(kind) + " " + std::to_string(number), number);
}

ThreadRange::~ThreadRange() {
  if (open_) pop();
}

AsyncRange::AsyncRange(const RangeLabel& label) : open_(profiler_attached()) {
  if (open_) id_ = start(text_of(label), label.number);
}

AsyncRange::~AsyncRange() {
  if (open_) end(id_);
}
#else
bool profiler_attached() { return false; }
ThreadRange::ThreadRange(const RangeLabel& /*label*/) : open_(false) {}
ThreadRange::ThreadRange(std::string_view /*kind*/, int64_t /*number*/) : open_(false) {}
ThreadRange::~ThreadRange() = default;
AsyncRange::AsyncRange(const RangeLabel& /*label*/) : open_(false) {}
AsyncRange::~AsyncRange() = default;
#endif

AsyncRange::AsyncRange(AsyncRange&& other) noexcept
    : open_(std::exchange(other.open_, false)), id_(other.id_) {}

}  // namespace meshnet
