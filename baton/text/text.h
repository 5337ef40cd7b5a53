// Text with provenance: a string that remembers which bytes the chat template wrote and which came
// from outside (message contents, roles, tool definitions). Only bytes written by the template (or
// by the model file) may become control ids; everything that cuts or joins strings keeps the marks.
// Values; any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton::text {

// A run of text for the tokenizer. from_template = control tokens in it are recognised.
struct Piece {
  std::string text;
  bool from_template = false;
  bool operator==(const Piece&) const = default;
};

class Text {
 public:
  // Bytes [end of the run before, end), all of one origin.
  struct Run {
    std::size_t end = 0;
    bool from_template = false;
  };

  Text() = default;
  Text(std::string bytes, bool from_template);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  // Runs in order, none empty, neighbours differ in origin; the last ends at bytes().size().
  [[nodiscard]] std::span<const Run> runs() const { return runs_; }

  void append(const Text& other);
  void append(std::string_view bytes, bool from_template);
  // Bytes [begin, end) of other, with their marks. begin <= end <= other.bytes().size().
  void append_slice(const Text& other, std::size_t begin, std::size_t end);
  [[nodiscard]] Text slice(std::size_t begin, std::size_t end) const;
  // Origin of the byte at `position`; false past the end.
  [[nodiscard]] bool from_template_at(std::size_t position) const;
  [[nodiscard]] std::vector<Piece> pieces() const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

}  // namespace baton::text
