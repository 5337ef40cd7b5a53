// Something that does not answer: said once when it begins and once when it is over, asked again
// after a pause that doubles.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/log.h"
#include "baton/base/result.h"

#include <algorithm>
#include <string>
#include <utility>

namespace baton::membership {

class Outage {
 public:
  // consequence: what the log says that an outage means. The pause doubles from `first` to `most`.
  Outage(std::string consequence, Duration first, Duration most)
      : consequence_(std::move(consequence)), first_(first), most_(most), pause_(first) {}

  // Returns the pause before the next try.
  Duration failed(const Error& error) {
    if (!std::exchange(on_, true)) {
      log::warn("{}: {}", error.message, consequence_);
    }
    const Duration pause = pause_;
    pause_ = std::min(pause_ * 2, most_);
    return pause;
  }
  void over() {
    pause_ = first_;
    if (std::exchange(on_, false)) {
      log::info("etcd answers again");
    }
  }

 private:
  const std::string consequence_;
  const Duration first_;
  const Duration most_;
  Duration pause_;
  bool on_ = false;
};

}  // namespace baton::membership
