// The functions of libucp, found when they are first wanted. Not linked: a node that does not use
// UCX neither needs the library nor runs its constructors, which set crash handlers and more.
#pragma once

#include "baton/base/result.h"

#include <ucp/api/ucp.h>

#include <memory>

#define BATON_UCX_FUNCTIONS(each)       \
  each(ucp_get_version_string);         \
  each(ucp_config_read);                \
  each(ucp_config_modify);              \
  each(ucp_config_release);             \
  each(ucp_init_version);               \
  each(ucp_cleanup);                    \
  each(ucp_worker_create);              \
  each(ucp_worker_destroy);             \
  each(ucp_worker_query);               \
  each(ucp_worker_get_address);         \
  each(ucp_worker_release_address);     \
  each(ucp_worker_get_efd);             \
  each(ucp_worker_arm);                 \
  each(ucp_worker_progress);            \
  each(ucp_worker_set_am_recv_handler); \
  each(ucp_ep_create);                  \
  each(ucp_am_send_nbx);                \
  each(ucp_am_recv_data_nbx);           \
  each(ucp_am_data_release);            \
  each(ucp_request_free);               \
  each(ucs_status_string)

namespace baton::ucx {

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration takes none
#define BATON_UCX_MEMBER(name) decltype(&::name) name = nullptr
  BATON_UCX_FUNCTIONS(BATON_UCX_MEMBER);
#undef BATON_UCX_MEMBER
};

// The library, once for the process; it is never unloaded. Errors: kUnavailable.
Result<const Library*> load_library();

// Error with UCX's word for it.
Error ucx_error(const Library& ucx, ErrorCode code, const char* what, ucs_status_t status);

// A ucp_context, shared by the fabric and its lanes.
class Context {
 public:
  Context(const Library& library, ucp_context_h handle) : ucx(library), handle_(handle) {}
  ~Context() { ucx.ucp_cleanup(handle_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  [[nodiscard]] ucp_context_h handle() const { return handle_; }

  const Library& ucx;

 private:
  ucp_context_h handle_;
};

}  // namespace baton::ucx
