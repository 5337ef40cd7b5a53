// The Asio headers that baton uses, in one place, so that they can be precompiled
// (baton_use_asio_pch). Include it only from net/, ucx/, http/, handoff/, membership/ and apps/.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace baton {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

// For operations whose failure is expected: co_await op(kTuple) yields (error_code, ...) and throws
// only when the coroutine itself is cancelled.
inline constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

}  // namespace baton
