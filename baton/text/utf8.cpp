// Decoding follows table 3-7 of the Unicode standard ("Well-Formed UTF-8 Byte Sequences"): the
// first byte fixes the length and the range of the second, so the maximal invalid part is found
// while reading.
#include "baton/text/utf8.h"

namespace baton::text {
namespace {

struct Lead {
  std::size_t length = 0;  // 0: no character begins with this byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) {
    return {1};
  }
  if (byte >= 0xC2 && byte <= 0xDF) {
    return {2};
  }
  if (byte >= 0xE0 && byte <= 0xEF) {
    Lead lead{3};
    lead.second_min = byte == 0xE0 ? 0xA0 : 0x80;  // no overlong forms
    lead.second_max = byte == 0xED ? 0x9F : 0xBF;  // no surrogates
    return lead;
  }
  if (byte >= 0xF0 && byte <= 0xF4) {
    Lead lead{4};
    lead.second_min = byte == 0xF0 ? 0x90 : 0x80;
    lead.second_max = byte == 0xF4 ? 0x8F : 0xBF;  // nothing above U+10FFFF
    return lead;
  }
  return {};
}

}  // namespace

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

Utf8Step decode_utf8(std::string_view text, std::size_t position) {
  const auto byte_at = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte_at(position);
  if (first < 0x80) {
    return {first, 1, true, false};
  }
  const Lead lead = lead_of(first);
  if (lead.length == 0) {
    return {kReplacement, 1, false, false};
  }
  char32_t code_point = first & (0xFFU >> (lead.length + 1));
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) {
      return {kReplacement, i, false, true};
    }
    const unsigned char byte = byte_at(position + i);
    const unsigned char low = i == 1 ? lead.second_min : 0x80;
    const unsigned char high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) {
      return {kReplacement, i, false, false};
    }
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  return {code_point, lead.length, true, false};
}

std::string sanitized_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, i);
    if (step.valid) {
      out.append(bytes, i, step.bytes);
    } else {
      append_utf8(out, kReplacement);
    }
    i += step.bytes;
  }
  return out;
}

bool is_valid_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, i);
    if (!step.valid) {
      return false;
    }
    i += step.bytes;
  }
  return true;
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++count) {
    i += decode_utf8(text, i).bytes;
  }
  return count;
}

void Utf8Decoder::feed(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_;
    joined += bytes;
    bytes = joined;
    pending_.clear();
  }
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = decode_utf8(bytes, i);
    if (step.incomplete) {
      pending_ = bytes.substr(i);
      return;
    }
    if (step.valid) {
      out.append(bytes, i, step.bytes);
    } else {
      append_utf8(out, kReplacement);
    }
    i += step.bytes;
  }
}

void Utf8Decoder::flush(std::string& out) {
  if (!pending_.empty()) {
    append_utf8(out, kReplacement);
    pending_.clear();
  }
}

}  // namespace baton::text
