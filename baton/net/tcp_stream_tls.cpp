// TcpStream over TLS. Plain bytes are copied twice more than in the clear (into a sealed record on
// one side, out of it on the other); the number of system calls is about the same.
#include "baton/net/tcp_stream_state.h"

#include <algorithm>
#include <cerrno>

namespace baton::net {

using Step = TlsSession::Step;

Error TcpStream::tls_error() const {
  if (state_->timed_out || !state_->socket.is_open()) {
    return error_now(ECONNABORTED);
  }
  return state_->tls->error(peer_);
}

// Until all that is sealed is with the kernel.
asio::awaitable<Status> TcpStream::flush_tls(Side side, Duration stall) {
  auto state = state_;
  while (true) {
    const Step step = state->tls->flush();
    if (step == Step::kDone) {
      co_return Status{};
    }
    if (step == Step::kFailed) {
      co_return fail(tls_error());
    }
    auto ready = co_await wait(side, tcp::socket::wait_write, stall);
    if (!ready) {
      co_return ready;
    }
  }
}

asio::awaitable<Status> TcpStream::start_tls(std::shared_ptr<const TlsContext> context,
                                             TlsRole role, Duration stall) {
  auto state = state_;
  state->tls = std::make_unique<TlsSession>(*context, role, &state->socket);
  while (true) {
    const Step step = state->tls->handshake();
    auto flushed = co_await flush_tls(Side::kWriter, stall);  // an alert of ours, too
    if (step == Step::kFailed) {
      co_return fail(tls_error());
    }
    if (!flushed || step == Step::kDone) {
      co_return flushed;
    }
    if (step == Step::kWantRead) {
      auto ready = co_await wait(Side::kReader, tcp::socket::wait_read, stall);
      if (!ready) {
        co_return ready;
      }
    }
  }
}

asio::awaitable<Result<std::size_t>> TcpStream::read_tls(std::vector<iovec> into, Duration stall) {
  auto state = state_;
  if (state->read_since_yield >= kYieldBytes) {
    state->read_since_yield = 0;
    co_await asio::post(state->socket.get_executor(), asio::use_awaitable);
  }
  std::size_t total = 0;
  std::size_t first = 0;
  while (true) {
    Step step = Step::kDone;
    while (first < into.size() && step == Step::kDone) {
      iovec& part = into[first];
      if (part.iov_len == 0) {
        ++first;
        continue;
      }
      std::size_t got = 0;
      step = state->tls->read({static_cast<std::byte*>(part.iov_base), part.iov_len}, &got);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + got;
      part.iov_len -= got;
      total += got;
    }
    if (total > 0) {  // a failure behind these bytes is met again by the next read
      state->read_since_yield += total;
      co_return total;
    }
    if (step == Step::kFailed) {
      (void)state->tls->flush();  // an alert of ours
      co_return fail(tls_error());
    }
    state->read_since_yield = 0;
    Status ready;
    if (step == Step::kWantWrite) {
      ready = co_await flush_tls(Side::kReader, stall);
    } else {
      ready = co_await wait(Side::kReader, tcp::socket::wait_read, stall);
    }
    if (!ready) {
      co_return fail(std::move(ready).error());
    }
  }
}

// Makes records of `plain`, and sends them once enough have gathered.
asio::awaitable<Status> TcpStream::seal(std::span<const std::byte> plain, Duration stall) {
  auto state = state_;
  while (!plain.empty()) {
    std::size_t taken = 0;
    const Step step = state->tls->seal(plain, &taken);
    plain = plain.subspan(taken);
    Status ready;
    if (step == Step::kFailed) {
      ready = fail(tls_error());
    } else if (step == Step::kWantRead) {
      ready = co_await wait(Side::kWriter, tcp::socket::wait_read, stall);
    } else if (step == Step::kWantWrite || state->tls->outgoing_bytes() >= kTlsFlushBytes) {
      ready = co_await flush_tls(Side::kWriter, stall);
    }
    if (!ready) {
      co_return ready;
    }
  }
  co_return Status{};
}

// Large parts are sealed where they lie; small ones (headers, the rows of a small tile) are
// gathered, since each record costs 22 bytes and a call of the cipher.
asio::awaitable<Status> TcpStream::write_tls(std::vector<iovec> parts, Duration stall) {
  auto state = state_;
  std::vector<std::byte>& staged = state->tls->staged;
  staged.clear();
  for (const iovec& part : parts) {
    std::span<const std::byte> rest(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    while (!rest.empty()) {
      std::span<const std::byte> record;
      if (staged.empty() && rest.size() >= kTlsRecordBytes) {
        record = rest.first(kTlsRecordBytes);
        rest = rest.subspan(record.size());
      } else {
        const auto taken = rest.first(std::min(rest.size(), kTlsRecordBytes - staged.size()));
        staged.insert(staged.end(), taken.begin(), taken.end());
        rest = rest.subspan(taken.size());
        record = staged;
      }
      if (record.size() < kTlsRecordBytes) {
        continue;  // more may come
      }
      state->written_since_yield += record.size();
      auto sealed = co_await seal(record, stall);
      if (!sealed) {
        co_return sealed;
      }
      if (record.data() == staged.data()) {
        staged.clear();
      }
      if (state->written_since_yield >= kYieldBytes) {
        state->written_since_yield = 0;
        co_await asio::post(state->socket.get_executor(), asio::use_awaitable);
      }
    }
  }
  const std::span<const std::byte> last(staged);
  auto sealed = co_await seal(last, stall);
  staged.clear();
  if (!sealed) {
    co_return sealed;
  }
  co_return co_await flush_tls(Side::kWriter, stall);
}

}  // namespace baton::net
