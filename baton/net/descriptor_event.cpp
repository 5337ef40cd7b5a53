#include "baton/net/descriptor_event.h"

#include "baton/net/tcp.h"

#include <boost/asio/posix/stream_descriptor.hpp>

namespace baton::net {

struct DescriptorEvent::State {
  explicit State(const asio::any_io_executor& executor) : descriptor(executor), timer(executor) {}
  asio::posix::stream_descriptor descriptor;
  asio::steady_timer timer;
};

DescriptorEvent::DescriptorEvent(const asio::any_io_executor& executor, int descriptor)
    : state_(std::make_shared<State>(executor)) {
  boost::system::error_code ignored;  // is_open() tells
  state_->descriptor.assign(descriptor, ignored);
}

DescriptorEvent::~DescriptorEvent() { release(); }

bool DescriptorEvent::is_open() const { return state_->descriptor.is_open(); }

void DescriptorEvent::release() {
  if (state_->descriptor.is_open()) {
    state_->descriptor.release();  // ends the wait, and does not close it
  }
}

asio::awaitable<void> DescriptorEvent::wait(Duration time) {
  const auto state = state_;  // the object may be released and gone when the wait ends
  if (!state->descriptor.is_open()) {
    co_return;
  }
  if (time != kForever) {
    state->timer.expires_after(time);
    state->timer.async_wait([state](const boost::system::error_code& error) {
      boost::system::error_code ignored;
      if (!error && state->descriptor.is_open()) {
        state->descriptor.cancel(ignored);
      }
    });
  }
  co_await state->descriptor.async_wait(
      asio::posix::stream_descriptor::wait_read,
      asio::bind_cancellation_slot(asio::cancellation_slot(), kTuple));
  state->timer.cancel();
}

}  // namespace baton::net
