// An OpenAI stream as it arrives: bytes and the time of their coming in, a RequestRecord out. Pure:
// no socket, no clock. Thread: one at a time.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/result.h"

#include "bench/serving/record.h"
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace baton::serving {

class StreamReader {
 public:
  // `record` must outlive this. keep_ids: the generated ids are kept, not only counted.
  StreamReader(RequestRecord* record, bool keep_ids);
  ~StreamReader();
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  // The next bytes of the body, however they are cut. False once the stream is over: [DONE], an
  // error event or a bad chunk (the record's failure says which).
  bool feed(std::string_view bytes, TimePoint at);
  // The body ended, or the connection did with `why`: without [DONE] that is a failure.
  void finish(const Error* why);

 private:
  struct Json;
  bool on_line(std::string_view line, TimePoint at);
  bool on_data(std::string_view data, TimePoint at);
  bool fail_with(std::string kind, std::string message);

  RequestRecord* record_;
  bool keep_ids_;
  bool over_ = false;
  std::string line_;  // begun, its end has not come
  std::unique_ptr<Json> json_;
};

// Kind and message of an answer that is no stream: "http_429" and what its body says.
void fail_by_status(RequestRecord& record, int status, std::string_view body);

}  // namespace baton::serving
