#include "apps/baton/config_file.h"

#include "baton/base/error.h"
#include "baton/base/trimmed.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <string_view>

namespace baton::app {

namespace {

// Blanks at the ends of a value are kept by quotes around it.
std::string unquoted(std::string_view text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  return std::string(quoted ? text.substr(1, text.size() - 2) : text);
}

// Null: the command has no such flag, or it takes no value (--help), or it is this file.
CLI::Option* find_flag(CLI::App& command, const std::string& name) {
  CLI::Option* option = command.get_option_no_throw("--" + name);
  const bool settable = option != nullptr && option->get_items_expected_max() > 0;
  return settable && name != "config" ? option : nullptr;
}

}  // namespace

void read_config_file(const std::string& path, CLI::App& command) {
  std::ifstream file(path);
  std::map<const CLI::Option*, int> given;  // -> its line
  std::string bytes;
  int number = 0;
  const auto refuse = [&](const std::string& why) {
    throw StartupError(fmt::format("{}:{}: {}", path, number, why));
  };
  while (std::getline(file, bytes)) {
    ++number;
    if (bytes.ends_with('\r')) {
      bytes.pop_back();
    }
    const std::string_view line = trimmed(bytes);
    if (line.empty() || line.front() == '#') {
      continue;
    }
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      refuse(fmt::format("'{}' is not `flag = value`", line));
    }
    const std::string name(trimmed(line.substr(0, equals)));
    CLI::Option* option = find_flag(command, name);
    if (option == nullptr) {
      refuse(fmt::format("there is no flag --{} to set (baton {} --help lists them)", name,
                         command.get_name()));
    }
    if (const auto [first, is_new] = given.emplace(option, number); !is_new) {
      refuse(fmt::format("{} is set in line {} already", option->get_name(), first->second));
    }
    if (option->count() > 0) {
      continue;
    }
    try {
      option->add_result(unquoted(trimmed(line.substr(equals + 1))));
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      refuse(error.what());
    }
  }
  if (!file.eof()) {  // it could not be opened, or not be read to its end
    throw StartupError(fmt::format("--config: cannot read {}", path));
  }
}

}  // namespace baton::app
