// utf8proc decomposes and composes; the reordering of combining marks between is ours, because
// utf8proc's is quadratic in the length of a run of marks.
#include "baton/text/normalizer.h"

#include "baton/base/check.h"
#include "baton/text/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace baton::text {
namespace {

// Every character below U+0300 is already composed and stays as it is.
bool surely_nfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0xCC; });
}

int combining_class(std::int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

void append_decomposed(char32_t code_point, std::vector<std::int32_t>& out) {
  // A canonical decomposition has at most 4 code points.
  std::int32_t buffer[8];
  int boundary = 0;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  const auto count =
      utf8proc_decompose_char(static_cast<std::int32_t>(code_point), buffer, 8, options, &boundary);
  BATON_CHECK(count >= 0 && count <= 8, "decomposition of U+{:04X}: {}",
              static_cast<std::uint32_t>(code_point), count);
  out.insert(out.end(), buffer, buffer + count);
}

void order_marks(std::vector<std::int32_t>& points) {
  for (auto begin = points.begin(); begin != points.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, points.end(), [](std::int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](std::int32_t a, std::int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

}  // namespace

std::string to_nfc(std::string_view text) {
  if (surely_nfc(text)) {
    return std::string(text);
  }
  std::vector<std::int32_t> points;
  points.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text, i);
    append_decomposed(step.code_point, points);
    i += step.bytes;
  }
  order_marks(points);
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto count = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  BATON_CHECK(count >= 0, "{}", count);
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    append_utf8(out, static_cast<char32_t>(points[i]));
  }
  return out;
}

}  // namespace baton::text
