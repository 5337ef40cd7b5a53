#include "baton/wire/limits.h"

namespace baton::wire {

std::size_t max_payload_bytes(FrameType type) {
  switch (type) {
    case FrameType::kHello:
    case FrameType::kHelloReply:
      return kMaxHelloBytes;
    case FrameType::kAbort:
    case FrameType::kRefused:
    case FrameType::kFinished:
      return kMaxAbortBytes;
    case FrameType::kBeat:
      return kMaxBeatBytes;
    case FrameType::kLane:
      return kMaxLaneBytes;
    case FrameType::kCached:
      return kMaxCachedBytes;
    case FrameType::kPrefill:
    case FrameType::kDecode:
    case FrameType::kGrant:
    case FrameType::kCommit:
    case FrameType::kAck:
    case FrameType::kTokens:
      return kMaxControlBytes;
    case FrameType::kBlocks:
      return kMaxBlocksBytes;
  }
  return 0;
}

}  // namespace baton::wire
