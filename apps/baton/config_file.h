// The file of --config: lines `flag = value`, for flags that neither the command line nor a BATON_*
// variable gave; # begins a line that is a comment.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
}

namespace baton::app {

// To be called once the command line has been parsed; sets what `command`'s flags are bound to.
// Throws StartupError that names the file and the line: no file, no `=`, a flag that there is not
// or that is there twice, a value that the flag refuses.
void read_config_file(const std::string& path, CLI::App& command);

}  // namespace baton::app
