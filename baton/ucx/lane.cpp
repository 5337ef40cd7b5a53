#include "baton/ucx/lane.h"

#include "baton/base/check.h"
#include "baton/base/ids.h"
#include "baton/base/log.h"
#include "baton/net/async_clock.h"
#include "baton/net/tcp.h"
#include "baton/ucx/abandoned.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <fstream>

namespace baton::ucx {

namespace {

constexpr unsigned kMessageId = 1;
// Whoever reaches UCX's ports could send to a worker: messages begin with bytes that only the peer
// has been told, by the connection on which the two nodes proved who they are.
constexpr std::size_t kKeyBytes = 16;
constexpr std::size_t kMaxHeaderBytes = 512;  // frames need 96
// Which run of which machine's kernel, in hex: the two ends on one of them share its memory.
constexpr std::size_t kMachineBytes = 36;
constexpr std::size_t kWorkerAt = kKeyBytes + kMachineBytes;  // in an address
// Messages that came and were not asked for yet. A sender has one under way.
constexpr std::size_t kMaxArrivals = 4;
// Turns of UCX before the other connections of this I/O thread have theirs.
constexpr int kRoundsPerTurn = 64;

TimePoint now() { return net::SystemAsyncClock().now(); }

std::string random_key() {
  const RequestId random = random_request_id();
  std::string key(kKeyBytes, '\0');
  std::memcpy(key.data(), &random.high, sizeof random.high);
  std::memcpy(key.data() + sizeof random.high, &random.low, sizeof random.low);
  return key;
}

std::string machine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  id.resize(kMachineBytes, '-');
  return id;
}

}  // namespace

Result<std::unique_ptr<net::Lane>> UcxLane::open(std::shared_ptr<const Context> context,
                                                 const asio::any_io_executor& executor,
                                                 Duration settle) {
  if (count_abandoned(context.get()) >= kMaxAbandoned) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("UCX: {} lanes of this process did not end in time", kMaxAbandoned));
  }
  std::unique_ptr<UcxLane> lane(new UcxLane(std::move(context), executor, settle));
  BATON_TRY_VOID(lane->start());
  return lane;
}

UcxLane::~UcxLane() { close(); }

Status UcxLane::start() {
  const auto failed = [&](const char* what, ucs_status_t status) {
    return fail(ucx_error(ucx_, ErrorCode::kUnavailable, what, status));
  };
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucx_.ucp_worker_create(context_->handle(), &params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return failed("making a worker", status);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = on_message;
  handler.arg = this;
  status = ucx_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) {
    return failed("receiving messages", status);
  }
  ucp_worker_attr_t limits{};
  limits.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  status = ucx_.ucp_worker_query(worker_, &limits);
  if (status != UCS_OK || limits.max_am_header < kKeyBytes + kMaxHeaderBytes) {
    return failed("its transports have no room for a header", status);
  }
  int descriptor = -1;
  status = ucx_.ucp_worker_get_efd(worker_, &descriptor);
  if (status != UCS_OK) {
    return failed("its transports wake nobody", status);
  }
  readable_.emplace(executor_, descriptor);
  if (!readable_->is_open()) {
    return fail(ErrorCode::kIo, "cannot watch UCX's descriptor");
  }
  return take_address();
}

Status UcxLane::take_address() {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t status = ucx_.ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) {
    return fail(ucx_error(ucx_, ErrorCode::kUnavailable, "its own address", status));
  }
  address_ = random_key() + machine();
  address_.append(reinterpret_cast<const char*>(address), bytes);
  ucx_.ucp_worker_release_address(worker_, address);
  return {};
}

Status UcxLane::connect(const std::string& address) {
  if (worker_ == nullptr || endpoint_ != nullptr || address.size() <= kWorkerAt) {
    return fail(ErrorCode::kInvalidArgument, "no UCX address, or a second one");
  }
  their_key_ = address.substr(0, kKeyBytes);
  one_machine_ = address.compare(kKeyBytes, kMachineBytes, address_, kKeyBytes, kMachineBytes) == 0;
  const std::string worker_address = address.substr(kWorkerAt);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  // Not "peer": shared memory would not be chosen, and UCX 1.13 asserts that no request is left
  // when a worker ends, which is just what close() is for. Without it on_error is called all the
  // same where a transport notices, and the socket beside the lane tells of the rest.
  params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
  const ucs_status_t status = ucx_.ucp_ep_create(worker_, &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return fail(ucx_error(ucx_, ErrorCode::kUnavailable, "no way to the peer", status));
  }
  return {};
}

// ---- what UCX calls ---------------------------------------------------------------------------

void UcxLane::on_sent(void* request, ucs_status_t status, void* lane) {
  auto* self = static_cast<UcxLane*>(lane);
  self->under_way_ = false;
  self->status_ = status;
  self->ucx_.ucp_request_free(request);
}

void UcxLane::on_received(void* request, ucs_status_t status, std::size_t /*bytes*/, void* lane) {
  on_sent(request, status, lane);
}

void UcxLane::on_error(void* lane, ucp_ep_h /*endpoint*/, ucs_status_t status) {
  auto* self = static_cast<UcxLane*>(lane);
  if (!self->broken_) {
    self->broken_ = ucx_error(self->ucx_, ErrorCode::kPeerLost, "the peer is gone", status);
  }
}

// UCS_INPROGRESS keeps the payload where it is, at the sender, until we fetch it; UCS_OK drops it.
ucs_status_t UcxLane::on_message(void* lane, const void* header, std::size_t header_bytes,
                                 void* data, std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxLane*>(lane);
  const auto* begin = static_cast<const std::byte*>(header);
  if (header_bytes < kKeyBytes || std::memcmp(begin, self->address_.data(), kKeyBytes) != 0) {
    return UCS_OK;  // a stranger's
  }
  const bool fetchable = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 && bytes > 0;
  if (!fetchable || header_bytes > kKeyBytes + kMaxHeaderBytes ||
      self->arrivals_.size() >= kMaxArrivals) {
    self->broken_ = Error{ErrorCode::kProtocol, "a UCX message that no sender of ours makes"};
    return UCS_OK;
  }
  Arrival arrival;
  arrival.message.header.assign(begin + kKeyBytes, begin + header_bytes);
  arrival.message.payload_bytes = bytes;
  arrival.descriptor = data;
  self->arrivals_.push_back(std::move(arrival));
  return UCS_INPROGRESS;
}

// ---- operations -------------------------------------------------------------------------------

// One piece of memory is what hardware moves by itself; UCX packs and unpacks several.
template <class Span>
ucp_request_param_t UcxLane::describe(const std::vector<Span>& memory, const void** buffer,
                                      std::size_t* count) {
  parts_.clear();
  for (const auto& part : memory) {
    if (!part.empty()) {
      parts_.push_back({const_cast<std::byte*>(part.data()), part.size()});
    }
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.user_data = this;
  if (parts_.size() == 1) {
    params.datatype = ucp_dt_make_contig(1);
    *buffer = parts_[0].buffer;
    *count = parts_[0].length;
  } else {
    params.datatype = ucp_dt_make_iov();
    *buffer = parts_.data();
    *count = parts_.size();
  }
  return params;
}

void UcxLane::begin(ucs_status_ptr_t request) {
  under_way_ = UCS_PTR_IS_PTR(request);
  if (!under_way_) {
    status_ = UCS_PTR_RAW_STATUS(request);  // ended at once: no callback comes
  }
}

Error UcxLane::lost() const {
  return broken_.value_or(Error{ErrorCode::kPeerLost, "the UCX lane is closed"});
}

Status UcxLane::finish(const char* what) {
  if (worker_ == nullptr) {
    return fail(lost());
  }
  if (under_way_) {
    const Error error = broken_.value_or(
        Error{ErrorCode::kDeadlineExceeded, fmt::format("UCX: {}: no end in time", what)});
    close();
    return fail(error);
  }
  if (status_ != UCS_OK) {
    const Error error = ucx_error(ucx_, ErrorCode::kPeerLost, what, status_);
    close();
    return fail(error);
  }
  return {};
}

asio::awaitable<Status> UcxLane::send(std::vector<std::byte> header,
                                      std::vector<std::span<const std::byte>> payload,
                                      Duration deadline) {
  BATON_CHECK(!under_way_ && header.size() <= kMaxHeaderBytes);
  if (worker_ == nullptr || endpoint_ == nullptr || broken_) {
    co_return fail(lost());
  }
  const bool throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  header_.resize(kKeyBytes);
  std::memcpy(header_.data(), their_key_.data(), kKeyBytes);
  header_.insert(header_.end(), header.begin(), header.end());
  const void* buffer = nullptr;
  std::size_t count = 0;
  ucp_request_param_t params = describe(payload, &buffer, &count);
  params.cb.send = on_sent;
  params.flags = UCP_AM_SEND_FLAG_RNDV;  // the receiver fetches it, into memory that it chose
  begin(ucx_.ucp_am_send_nbx(endpoint_, kMessageId, header_.data(), header_.size(), buffer, count,
                             &params));
  co_await drive(&UcxLane::at_rest, deadline);
  Status ended = finish("sending");
  co_await asio::this_coro::throw_if_cancelled(throws);
  co_return ended;
}

asio::awaitable<Result<net::LaneMessage>> UcxLane::next() {
  BATON_CHECK(taken_ == nullptr, "take() or drop() the message before");
  const bool throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  co_await drive(&UcxLane::has_arrival, net::kForever);
  Result<net::LaneMessage> message = fail(lost());
  if (worker_ != nullptr && has_arrival()) {
    taken_ = arrivals_.front().descriptor;
    taken_bytes_ = arrivals_.front().message.payload_bytes;
    message = std::move(arrivals_.front().message);
    arrivals_.pop_front();
  }
  if (!message) {
    close();
  }
  co_await asio::this_coro::throw_if_cancelled(throws);
  co_return message;
}

asio::awaitable<Status> UcxLane::take(std::vector<std::span<std::byte>> into, Duration deadline) {
  std::uint64_t room = 0;
  for (const auto& part : into) {
    room += part.size();
  }
  if (worker_ == nullptr) {
    co_return fail(lost());
  }
  BATON_CHECK(taken_ != nullptr && room == taken_bytes_ && !under_way_);
  const bool throws = co_await asio::this_coro::throw_if_cancelled();
  co_await asio::this_coro::throw_if_cancelled(false);
  const void* buffer = nullptr;
  std::size_t count = 0;
  ucp_request_param_t params = describe(into, &buffer, &count);
  params.cb.recv_am = on_received;
  void* descriptor = std::exchange(taken_, nullptr);
  begin(ucx_.ucp_am_recv_data_nbx(worker_, descriptor, const_cast<void*>(buffer), count, &params));
  co_await drive(&UcxLane::at_rest, deadline);
  Status ended = finish("receiving");
  co_await asio::this_coro::throw_if_cancelled(throws);
  co_return ended;
}

void UcxLane::drop() {
  if (worker_ != nullptr && taken_ != nullptr) {
    ucx_.ucp_am_data_release(worker_, taken_);
  }
  taken_ = nullptr;
}

asio::awaitable<void> UcxLane::drive(bool (UcxLane::*done)() const, Duration time) {
  const TimePoint end = time == net::kForever ? TimePoint::max() : now() + time;
  while (worker_ != nullptr && !(this->*done)() && !broken_) {
    bool worked = false;
    for (int i = 0; i < kRoundsPerTurn && ucx_.ucp_worker_progress(worker_) != 0; ++i) {
      worked = true;
    }
    if ((this->*done)() || broken_) {
      co_return;
    }
    const TimePoint at = now();
    if (at >= end) {
      co_return;
    }
    // Busy: something came since.
    const ucs_status_t armed = worked ? UCS_ERR_BUSY : ucx_.ucp_worker_arm(worker_);
    if (armed == UCS_OK) {
      const Duration left = time == net::kForever ? net::kForever : end - at;
      co_await readable_->wait(left);
    } else if (armed == UCS_ERR_BUSY) {
      co_await asio::post(executor_, asio::use_awaitable);
    } else {
      broken_ = ucx_error(ucx_, ErrorCode::kPeerLost, "waiting", armed);
    }
  }
}

// ---- the end ----------------------------------------------------------------------------------

// Where both ends are on one machine UCX may be copying between their memories, by itself and not
// for long; a worker that ends before would end the process (UCX asserts that nothing is queued).
// What waits for the other side makes no progress, and ends with the worker.
bool UcxLane::settle() {
  if (!one_machine_) {
    return true;
  }
  const TimePoint end = now() + settle_;
  while (under_way_ && ucx_.ucp_worker_progress(worker_) != 0) {
    if (now() >= end) {
      return !under_way_;
    }
  }
  return true;
}

// UCX touches no memory for a worker that nobody lets progress, and needs all else of it.
void UcxLane::abandon() {
  const std::size_t count = ucx::abandon(context_, worker_);
  log::warn("UCX: a lane did not end within {} ms and is left behind ({} of {})",
            std::chrono::duration_cast<std::chrono::milliseconds>(settle_).count(), count,
            kMaxAbandoned);
}

void UcxLane::close() {
  if (worker_ == nullptr) {
    return;
  }
  const bool at_rest = settle();
  if (readable_) {
    readable_->release();  // and wakes whoever waits: it finds the worker gone
  }
  if (at_rest) {
    // What has come and was not taken goes with it; dropped in due form it would be taken by the
    // sender's account.
    ucx_.ucp_worker_destroy(worker_);
  } else {
    abandon();
  }
  arrivals_.clear();
  taken_ = nullptr;
  worker_ = nullptr;
  endpoint_ = nullptr;
  under_way_ = false;
}

}  // namespace baton::ucx
