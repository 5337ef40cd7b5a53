// The tables of states and events of this folder's machines, for baton/base/cells.h. Events are
// split by who they come from where the answer depends on it. Thread: any.
#pragma once

#include "baton/base/cells.h"

#include <cstdint>

namespace baton::handoff::cells {

// Of the role machines: 0 is a sequence without an entry, then their State in its order.
enum class PrefillEvent : std::uint8_t {
  kPrefill,
  kGrant,
  kBadGrant,  // of another node, or a second one
  kAckRanges,
  kAckAll,
  kBadAck,  // of another node
  kAbortOwner,
  kAbortCounterpart,
  kAbortSelf,  // a later epoch, or the node stops
  kOwnerDown,
  kCounterpartDown,
  kOwnerLost,  // by its Beats
  kCounterpartLost,
  kFrameSent,
  kFrameFailed,
  kCommitSent,
  kCommitFailed,
  kProgress,
  kDone,
  kDoneEnd,  // with the last token
  kRefused,
  kFinished,
  kDeadline,
  kNoLink,
};
CellTable& prefill();

enum class DecodeEvent : std::uint8_t {
  kDecode,
  kReserved,
  kBlocks,
  kBadBlocks,  // corrupt, cut off, or refused by the table
  kCommit,
  kCommitEnd,  // with the last token
  kBadCommit,  // of another node
  kLanded,     // the last byte in flight to a closed reservation
  kAbortOwner,
  kAbortCounterpart,
  kAbortSelf,
  kOwnerDown,
  kCounterpartDown,
  kOwnerLost,
  kCounterpartLost,
  kCounterpartUp,
  kRefused,
  kFinished,
  kDeadline,
  kNoLink,
};
CellTable& decode();

// Of an attempt.
enum class OwnerState : std::uint8_t {
  kNone,
  kAsked,      // a split one, of which no token has come
  kPrefilled,  // the prefill node's token has
  kDecoding,   // one of the decode node's has
  kAlone,      // one node does both
};
// What a node sends or suffers, then the same of the node of a prefill leg, then our own side.
enum class OwnerEvent : std::uint8_t {
  kToken,
  kLastToken,
  kRefused,
  kFinished,
  kAbort,  // by the node
  kLost,   // by its Beats, or it stands still
  kDown,
  kTokenOfPrefill,
  kLastTokenOfPrefill,
  kRefusedOfPrefill,
  kFinishedOfPrefill,
  kAbortOfPrefill,
  kLostOfPrefill,
  kDownOfPrefill,
  kAbortAll,  // by the router
  kAbortLeg,
  kStop,
};
inline constexpr std::uint8_t kOfPrefill = 7;  // from an event of a node to that of a prefill leg
CellTable& owner();

}  // namespace baton::handoff::cells
