// One UCX worker with one endpoint: everything of a lane ends with its worker, so an abort is the
// worker's end, in whatever state it is. (In the one state in which UCX would not survive that, the
// worker is left alone for ever.) Private to baton/ucx/.
#pragma once

#include "baton/net/descriptor_event.h"
#include "baton/net/fabric.h"
#include "baton/ucx/library.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace baton::ucx {

class UcxLane final : public net::Lane {
 public:
  // Errors: kUnavailable, kIo. `settle`: as in UcxOptions.
  static Result<std::unique_ptr<net::Lane>> open(std::shared_ptr<const Context> context,
                                                 const asio::any_io_executor& executor,
                                                 Duration settle);
  ~UcxLane() override;

  [[nodiscard]] const std::string& address() const override { return address_; }
  Status connect(const std::string& address) override;
  asio::awaitable<Status> send(std::vector<std::byte> header,
                               std::vector<std::span<const std::byte>> payload,
                               Duration deadline) override;
  asio::awaitable<Result<net::LaneMessage>> next() override;
  asio::awaitable<Status> take(std::vector<std::span<std::byte>> into, Duration deadline) override;
  void drop() override;
  void close() override;

 private:
  struct Arrival {
    net::LaneMessage message;
    void* descriptor = nullptr;  // UCX's, until it is taken or dropped
  };

  UcxLane(std::shared_ptr<const Context> context, asio::any_io_executor executor, Duration settle)
      : context_(std::move(context)),
        ucx_(context_->ucx),
        executor_(std::move(executor)),
        settle_(settle) {}
  Status start();
  Status take_address();

  // Called by UCX within ucp_worker_progress, so never while close() runs elsewhere.
  static void on_sent(void* request, ucs_status_t status, void* lane);
  static void on_received(void* request, ucs_status_t status, std::size_t bytes, void* lane);
  static void on_error(void* lane, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t on_message(void* lane, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param);

  template <class Span>
  ucp_request_param_t describe(const std::vector<Span>& memory, const void** buffer,
                               std::size_t* count);
  void begin(ucs_status_ptr_t request);
  // After drive(): how the operation ended; when it did not, it is cut.
  Status finish(const char* what);
  [[nodiscard]] Error lost() const;

  [[nodiscard]] bool at_rest() const { return !under_way_; }
  [[nodiscard]] bool has_arrival() const { return !arrivals_.empty(); }
  // Lets UCX work until `done`, `time` is over, or nothing works any more; asleep when it has
  // nothing to do.
  asio::awaitable<void> drive(bool (UcxLane::*done)() const, Duration time);
  // False: UCX would not survive the worker's end.
  bool settle();
  void abandon();

  const std::shared_ptr<const Context> context_;
  const Library& ucx_;
  const asio::any_io_executor executor_;
  const Duration settle_;
  ucp_worker_h worker_ = nullptr;  // null: closed
  ucp_ep_h endpoint_ = nullptr;
  std::optional<net::DescriptorEvent> readable_;
  std::string address_;    // our key, our machine, then our worker's address
  std::string their_key_;  // what our messages begin with
  bool one_machine_ = true;

  // The one operation under way.
  bool under_way_ = false;
  ucs_status_t status_ = UCS_OK;
  std::vector<std::byte> header_;
  std::vector<ucp_dt_iov_t> parts_;

  std::deque<Arrival> arrivals_;
  void* taken_ = nullptr;  // descriptor of the message that next() returned
  std::uint64_t taken_bytes_ = 0;
  std::optional<Error> broken_;
};

}  // namespace baton::ucx
