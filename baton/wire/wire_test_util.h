// One valid message of each kind, for tests of the wire format.
#pragma once

#include "baton/wire/codec.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace baton::wire::test {

inline std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

inline SequenceKey sample_key() {
  return {RequestId{0x0102030405060708, 0x1112131415161718}, {3}, {7}};
}

inline pb::Request sample_request() {
  pb::Request request;
  for (const int id : {1, 4093, 49151}) {
    request.add_prompt(id);
  }
  request.add_emitted(17);
  request.mutable_sampling()->set_temperature_bits(bits(0.7F));
  request.mutable_sampling()->set_top_p_bits(bits(0.9F));
  request.mutable_sampling()->set_typical_p_bits(bits(1.0F));
  request.mutable_sampling()->set_repetition_penalty_bits(bits(1.1F));
  request.mutable_sampling()->set_seed(0xFEDCBA9876543210);
  request.mutable_sampling()->set_top_logprobs(-1);
  auto* bias = request.mutable_sampling()->add_logit_bias();
  bias->set_token(5);
  bias->set_bias_bits(bits(-std::numeric_limits<float>::infinity()));
  request.set_max_tokens(16);
  request.set_cache_namespace(std::string(16, 'n'));
  return request;
}

inline pb::Token sample_token() {
  pb::Token token;
  token.set_request_high(1);
  token.set_index(4);
  token.set_token(99);
  token.set_logprob_bits(bits(-0.25F));
  auto* other = token.add_top();
  other->set_token(100);
  other->set_logprob_bits(bits(-3.5F));
  token.set_finish(pb::FINISH_LENGTH);
  return token;
}

inline std::vector<Control> sample_controls() {
  pb::Prefill prefill;
  *prefill.mutable_request() = sample_request();
  prefill.set_decode_node("d1");
  prefill.set_reply_to("router");
  pb::Decode decode;
  *decode.mutable_request() = sample_request();
  decode.set_prefill_node("p1");
  decode.set_reply_to("router");
  pb::Grant grant;
  auto* range = grant.add_ranges();
  range->set_first_tile(3);
  range->set_tiles(5);
  pb::Ack ack;
  ack.set_all(true);
  pb::Tokens tokens;
  tokens.set_step(12);
  *tokens.add_tokens() = sample_token();
  pb::Refused refused;
  refused.set_later(true);
  refused.set_code(7);
  refused.set_message("pool full");
  refused.set_retry_after_ms(250);
  pb::Finished finished;
  finished.set_reason(pb::FINISH_ERROR);
  pb::Abort abort;
  abort.set_code(10);
  abort.set_message("bye");
  pb::Beat beat;
  beat.set_free_blocks(5);
  beat.set_total_blocks(9);
  beat.add_held()->set_request_high(1);
  pb::Cached cached;
  cached.set_number(3);
  for (const std::uint64_t name : {0x0123456789ABCDEFU, 0xFFFFFFFFFFFFFFFFU}) {
    cached.add_added(name);
  }
  cached.add_removed(5);
  return {prefill, decode, grant, ack, tokens, refused, finished, abort, beat, cached};
}

inline pb::Commit sample_commit() {
  pb::Commit commit;
  commit.set_frames(2);
  commit.set_payload_bytes(1 << 20);
  commit.set_digest(std::string(16, 'd'));
  commit.set_tokens_digest(std::string(16, 't'));
  commit.set_kv_tokens(33);
  *commit.add_first() = sample_token();
  return commit;
}

inline pb::Hello sample_hello() {
  pb::Hello hello;
  hello.set_protocol_min(1);
  hello.set_protocol_max(1);
  hello.set_node_id("p1");
  hello.set_role(1);
  hello.set_exactness_tag("tag");
  hello.set_model_digest("model");
  hello.set_tokenizer_digest("tokenizer");
  auto* group = hello.add_groups();
  group->set_layers(30);
  group->set_kv_heads(3);
  group->set_head_dim(64);
  group->set_dtype("bf16");
  hello.set_block_tokens(128);
  hello.set_max_context_tokens(8192);
  hello.set_pool_tokens(65536);
  hello.set_boot_low(1);
  return hello;
}

}  // namespace baton::wire::test
