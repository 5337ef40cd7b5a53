// How flags are added: each gets its BATON_* variable and its default in the help. For the files
// that declare flags (options.cpp and those beside it).
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <map>
#include <string>
#include <vector>

namespace baton::app {

// "-c,--ctx-size,--max-model-len" -> BATON_CTX_SIZE: the first long spelling.
inline std::string variable_name(const std::string& names) {
  const std::size_t begin = names.find("--") + 2;
  std::string name = "BATON_";
  for (const char c : names.substr(begin, names.find(',', begin) - begin)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

template <class T>
CLI::Option* flag(CLI::App& app, const std::string& names, T& value, const std::string& help) {
  return app.add_option(names, value, help)->envname(variable_name(names))->capture_default_str();
}

// One of the map's names (lower case), given in any case, for an enumeration. The help lists the
// names, not the values they stand for.
template <class T>
CLI::Validator one_of(const std::map<std::string, T>& names) {
  std::vector<std::string> shown;
  for (const auto& [name, value] : names) {
    shown.push_back(name);
  }
  const std::string list = fmt::format("{{{}}}", fmt::join(shown, ","));
  const auto to_number = [names, list](std::string& given) {
    for (const auto& [name, value] : names) {
      if (CLI::detail::to_lower(given) == name) {
        given = std::to_string(static_cast<int>(value));
        return std::string();
      }
    }
    return fmt::format("{} not in {}", given, list);
  };
  return {to_number, list};
}

}  // namespace baton::app
