/* What a profiler loads into a process, reduced to writing down the ranges it is told of. NVTX
 * loads the library that NVTX_INJECTION64_PATH names; the lines go to the file NVTX_EVENTS, one for
 * each event, tabs between: what, thread, domain, id, payload, message. */

#include <inttypes.h>
#include <nvtx3/nvToolsExt.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

struct nvtxDomainRegistration_st {
  const char* name;
};

static FILE* events;
static atomic_ullong last_id;

static void write_event(const char* what,
                        nvtxDomainHandle_t domain,
                        unsigned long long id,
                        const nvtxEventAttributes_t* event) {
  const int64_t payload = event == NULL ? 0 : event->payload.llValue;
  /* One call, so that threads do not mix; flushed, so that a killed process leaves what it wrote.
   */
  fprintf(events,
          "%s\t%ld\t%s\t%llu\t%" PRId64 "\t%s\n",
          what,
          syscall(SYS_gettid),
          domain->name,
          id,
          payload,
          event == NULL ? "" : event->message.ascii);
  fflush(events);
}

static nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  nvtxDomainHandle_t domain = malloc(sizeof *domain);
  domain->name = name; /* literals in our code */
  return domain;
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  write_event("push", domain, 0, event);
  return 0;
}

static int NVTX_API pop(nvtxDomainHandle_t domain) {
  write_event("pop", domain, 0, NULL);
  return 0;
}

static nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  const nvtxRangeId_t id = ++last_id;
  write_event("start", domain, id, event);
  return id;
}

static void NVTX_API end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  write_event("end", domain, id, NULL);
}

NVTX_DYNAMIC_EXPORT int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* callbacks = get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable functions = NULL;
  unsigned int size = 0;
  events = fopen(getenv("NVTX_EVENTS"), "a");
  if (events == NULL || callbacks == NULL ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &size) ||
      size <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  *functions[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *functions[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  *functions[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start;
  *functions[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end;
  return 1;
}
