// Another way than a socket for bulk data: messages whose receiver, knowing a message's header,
// says where its payload belongs. An interface: baton/ucx/ has the one implementation, and whoever
// uses it (baton/handoff/) does not know which one it is.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"
#include "baton/net/asio.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace baton::net {

struct LaneMessage {
  std::vector<std::byte> header;
  std::uint64_t payload_bytes = 0;  // >= 1
};

// One end of a pair that is used in one direction: one end sends, the other receives, one message
// at a time. After an error other than kInvalidArgument it is closed.
// Memory: what send() reads and take() writes is touched until they return and never after that,
// whatever happens; cancelling the coroutine takes effect only then, so who cancels also closes.
// Thread: all of it on the executor that it was opened with. It must outlive its operations.
class Lane {
 public:
  virtual ~Lane() = default;
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // What the other end's connect() needs: bytes, a few hundred at most on common machines.
  [[nodiscard]] virtual const std::string& address() const = 0;
  // Once, on both ends. `address` is trusted as far as the peer is. Errors: kUnavailable (the two
  // have no way in common).
  virtual Status connect(const std::string& address) = 0;

  // Completes when the other end has taken or dropped the message. Payload: at least one byte.
  // Errors: kPeerLost (closed, broken), kDeadlineExceeded.
  virtual asio::awaitable<Status> send(std::vector<std::byte> header,
                                       std::vector<std::span<const std::byte>> payload,
                                       Duration deadline) = 0;

  // Waits for the next message, which must be taken or dropped before the one after it. Errors:
  // kPeerLost, kProtocol.
  virtual asio::awaitable<Result<LaneMessage>> next() = 0;
  // Its payload goes to `into`, which has room for exactly that. Errors: kPeerLost,
  // kDeadlineExceeded.
  virtual asio::awaitable<Status> take(std::vector<std::span<std::byte>> into,
                                       Duration deadline) = 0;
  virtual void drop() = 0;

  // Ends the operation under way with kPeerLost; its memory is free when this returns. Idempotent.
  virtual void close() = 0;
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  Fabric() = default;
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // "ucx": two nodes use it when both name the same.
  [[nodiscard]] virtual const std::string& name() const = 0;
  // Errors: kUnavailable, kIo. Thread: the executor's, which must be serial.
  virtual Result<std::unique_ptr<Lane>> open_lane(const asio::any_io_executor& executor) = 0;
};

}  // namespace baton::net
