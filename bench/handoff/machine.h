// What a table needs to be read: which tree, which machine, and how busy others kept it.
#pragma once

#include <string>

namespace baton::bench_handoff {

struct Machine {
  std::string commit;  // of the checkout that the program lies in; "unknown" outside of one
  std::string date;    // "2026-01-31 12:00 UTC"
  std::string cpu;
  int cores = 0;       // that this process may use
  std::string model;   // the file's name
  std::string binary;  // path of this program
  double load_before = 0;
  double busy_before = 0;  // share of all cores' time that somebody used, 0 to 1
  std::string link;        // "loopback", or its rate
  double load_after = 0;
};

// All but the last. Takes two seconds, in which it looks who else is busy.
[[nodiscard]] Machine look_at_machine(const std::string& model_path, const std::string& link);
[[nodiscard]] double load_average();  // of the last minute

// Path of the running program.
[[nodiscard]] std::string own_path();

}  // namespace baton::bench_handoff
