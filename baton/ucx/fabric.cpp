#include "baton/ucx/fabric.h"

#include "baton/base/log.h"
#include "baton/ucx/lane.h"

#include <utility>

namespace baton::ucx {

namespace {

class UcxFabric final : public net::Fabric {
 public:
  UcxFabric(std::shared_ptr<const Context> context, Duration settle)
      : context_(std::move(context)), settle_(settle) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<std::unique_ptr<net::Lane>> open_lane(const asio::any_io_executor& executor) override {
    return UcxLane::open(context_, executor, settle_);
  }

 private:
  const std::string name_ = "ucx";
  std::shared_ptr<const Context> context_;
  Duration settle_;
};

Result<ucp_context_h> make_context(const Library& ucx, const std::string& transports) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) {
    return fail(ucx_error(ucx, ErrorCode::kUnavailable, "reading its variables", status));
  }
  // The receiver fetches, or UCX copies for it: nobody else ever writes into its memory, so what it
  // has closed is at rest. By "put" a peer that we no longer hear could still write.
  status = ucx.ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
  // Over TCP, UCX 1.13 sends the caller's own memory ("zcopy") or a copy. When a connection turns
  // out to be dead at a write of the former it completes that request twice, which is an assertion
  // and the end of the process. What RDMA and shared memory fetch is none of this.
  if (status == UCS_OK) {
    status = ucx.ucp_config_modify(config, "ZCOPY_THRESH", "inf");
  }
  if (status == UCS_OK && !transports.empty()) {
    status = ucx.ucp_config_modify(config, "TLS", transports.c_str());
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 1;  // each lane has its worker, on one of several I/O threads
  ucp_context_h context = nullptr;
  if (status == UCS_OK) {
    status = ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  }
  ucx.ucp_config_release(config);
  if (status != UCS_OK) {
    return fail(ucx_error(ucx, ErrorCode::kUnavailable, "making a context", status));
  }
  return context;
}

}  // namespace

bool is_built() { return true; }

Result<std::shared_ptr<net::Fabric>> open_fabric(const UcxOptions& options) {
  BATON_TRY(const Library* ucx, load_library());
  BATON_TRY(ucp_context_h context, make_context(*ucx, options.transports));
  log::info("UCX {} is loaded", ucx->ucp_get_version_string());
  return std::make_shared<UcxFabric>(std::make_shared<const Context>(*ucx, context),
                                     options.settle);
}

}  // namespace baton::ucx
