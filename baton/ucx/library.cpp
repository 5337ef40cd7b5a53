#include "baton/ucx/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace baton::ucx {

namespace {

// What UCX does by itself unless its variables say otherwise, and what a server wants instead.
constexpr std::pair<const char*, const char*> kDefaults[] = {
    {"UCX_HANDLE_ERRORS", "none"},  // SIGSEGV and others stay with the process
    {"UCX_LOG_FILE", "stderr"},     // stdout is for "listening ..."
    // What fails is said by us, with the peer's name. UCX warns of each request that an abort cut.
    {"UCX_LOG_LEVEL", "fatal"},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_TCP_TX_SEG_SIZE", "64k"},  // what one write sends (fabric.cpp); UCX's own is 8k
};

template <class Function>
void find(void* library, const char* name, Function& into, std::string& missing) {
  into = reinterpret_cast<Function>(::dlsym(library, name));
  if (into == nullptr) {
    missing += missing.empty() ? name : fmt::format(", {}", name);
  }
}

Result<Library> open_library() {
  for (const auto& [name, value] : kDefaults) {
    ::setenv(name, value, 0);  // before its constructors run
  }
  void* opened = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("UCX is not installed ({}); on Debian: libucx0", ::dlerror()));
  }
  Library library;
  std::string missing;
#define BATON_UCX_FIND(name) find(opened, #name, library.name, missing)
  BATON_UCX_FUNCTIONS(BATON_UCX_FIND);
#undef BATON_UCX_FIND
  if (!missing.empty()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("libucp.so.0 is older than UCX 1.13: it lacks {}", missing));
  }
  return library;
}

}  // namespace

Result<const Library*> load_library() {
  static const Result<Library> kLibrary = open_library();
  if (!kLibrary) {
    return fail(kLibrary.error());
  }
  return &*kLibrary;
}

Error ucx_error(const Library& ucx, ErrorCode code, const char* what, ucs_status_t status) {
  return Error{code, fmt::format("UCX: {}: {}", what, ucx.ucs_status_string(status))};
}

}  // namespace baton::ucx
