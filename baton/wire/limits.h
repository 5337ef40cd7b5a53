// The bounds of the protocol: each length is checked against its type's maximum before a byte of
// the payload is read, and each field after it is parsed.
#pragma once

#include "baton/wire/frames.h"

#include <cstddef>
#include <cstdint>

namespace baton::wire {

// Prompt ids ride in control frames: 1 MiB holds about 350,000 ids of a 200k vocabulary.
inline constexpr std::size_t kMaxControlBytes = std::size_t{1} << 20;
// Abort and Refused carry one sentence; Hello some 30 fields and a list of KV groups.
inline constexpr std::size_t kMaxAbortBytes = 8 * 1024;
inline constexpr std::size_t kMaxHelloBytes = 64 * 1024;
// A Beat lists what is held: 4,096 sequences of at most 34 bytes, and 64 bytes of load.
inline constexpr std::size_t kMaxBeatBytes = 256 * 1024;
// One Blocks frame: bounds what a receiver must swallow of a frame it does not want.
inline constexpr std::size_t kMaxBlocksBytes = std::size_t{64} << 20;

// A Lane is an address of a fabric: about 100 bytes, and some for each RDMA port of the machine.
inline constexpr std::size_t kMaxLaneBytes = 16 * 1024;

// A Cached has 2,048 names of 8 bytes.
inline constexpr std::size_t kMaxCachedBytes = 32 * 1024;

inline constexpr std::size_t kMaxNodeIdBytes = 64;
inline constexpr std::size_t kMaxTextBytes = 4096;  // error messages, tags, digests in hex
inline constexpr std::size_t kDigestBytes = 16;     // XXH3-128
inline constexpr std::size_t kNamespaceBytes = 16;
inline constexpr std::size_t kNonceBytes = 32;  // no two connections ever draw the same
inline constexpr std::size_t kProofBytes = 32;  // HMAC-SHA256
inline constexpr std::size_t kMaxFabricNameBytes = 32;
inline constexpr std::size_t kMaxLaneAddressBytes = 8 * 1024;
inline constexpr int kMaxHeld = 4096;         // sequences in a Beat
inline constexpr int kMaxTileRanges = 4096;   // in a Grant or Ack
inline constexpr int kMaxPrefixNames = 2048;  // in a Cached: 65,536 tokens of KV
inline constexpr int kMaxStopTokenIds = 1024;
inline constexpr int kMaxLogitBias = 4096;
inline constexpr int kMaxTopLogprobs = 20;       // the API's own bound
inline constexpr int kMaxTokensPerFrame = 8192;  // one step of one peer
inline constexpr int kMaxKvGroups = 64;
inline constexpr int kMaxFirstTokens = 128;  // choices of one request
inline constexpr std::int32_t kMaxSequenceTokens =
    1 << 27;  // far above any context; keeps sums in int32

// The largest payload of a type; 0 for types that do not exist.
std::size_t max_payload_bytes(FrameType type);

}  // namespace baton::wire
