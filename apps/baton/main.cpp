// The baton binary: every role, and the benchmarks. Subcommands and the one place where an
// operator's mistake becomes a line and an exit code.
#include "baton/base/log.h"

#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>

#include "apps/baton/bench_engine.h"
#include "apps/baton/bench_handoff.h"
#include "apps/baton/bench_perplexity.h"
#include "apps/baton/bench_serve.h"
#include "apps/baton/config_file.h"
#include "apps/baton/options.h"
#include "apps/baton/serve.h"
#include "apps/baton/version.h"
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

// CLI11 only says that a command is missing.
void print_unknown_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& argument : arguments) {
    const auto commands = at->get_subcommands(nullptr);
    if (commands.empty() || argument.starts_with('-')) {
      return;
    }
    const auto found = std::find_if(commands.begin(), commands.end(), [&](const CLI::App* command) {
      return command->get_name() == argument;
    });
    if (found == commands.end()) {
      fmt::print(stderr, "there is no command '{}'\n", argument);
      return;
    }
    at = *found;
  }
}

int run(int argc, char** argv) {
  CLI::App app{"baton: an exact server for large language models, prefill and decode apart"};
  app.require_subcommand(1);
  app.set_version_flag("--version", baton::app::kVersion);

  baton::app::ServeOptions serve;
  CLI::App* serve_command = app.add_subcommand("serve", "serve a model, or one part of a cluster");
  baton::app::add_serve_flags(*serve_command, serve);

  baton::app::BenchEngineOptions bench;
  CLI::App* bench_command = app.add_subcommand("bench", "measure");
  bench_command->require_subcommand(1);
  CLI::App* bench_engine =
      bench_command->add_subcommand("engine", "prefill and decode speed, as llama-bench does");
  baton::app::add_bench_flags(*bench_engine, bench);
  baton::app::BenchPerplexityOptions perplexity;
  CLI::App* bench_perplexity =
      bench_command->add_subcommand("perplexity", "how well the model predicts a text");
  baton::app::add_bench_flags(*bench_perplexity, perplexity);
  baton::app::BenchServeOptions bench_serve;
  CLI::App* bench_serve_command = bench_command->add_subcommand(
      "serve", "latency and throughput of any OpenAI-compatible server, as vllm bench serve does");
  baton::app::add_bench_flags(*bench_serve_command, bench_serve);

  baton::app::BenchHandoffOptions bench_handoff;
  CLI::App* bench_handoff_command = bench_command->add_subcommand(
      "handoff", "what the split costs, and what the transfer reaches of a socket");
  baton::app::add_bench_flags(*bench_handoff_command, bench_handoff);

  CLI::App* version_command = app.add_subcommand("version", "print the version");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 has a code of its own for each kind of mistake; ours is that of every tool.
    const int code = app.exit(error);
    if (code != 0) {
      print_unknown_command(app, {argv + 1, argv + argc});
      baton::app::print_variables_behind(error.what(), app);
    }
    return code == 0 ? 0 : baton::app::kUsageError;
  }
  if (serve_command->parsed() && !serve.config_path.empty()) {
    baton::app::read_config_file(serve.config_path, *serve_command);
  }
  if (version_command->parsed()) {
    fmt::print("baton {}\n", baton::app::kVersion);
    return 0;
  }
  if (bench_engine->parsed()) {
    return baton::app::run_bench_engine(bench);
  }
  if (bench_serve_command->parsed()) {
    return baton::app::run_bench_serve(bench_serve);
  }
  if (bench_handoff_command->parsed()) {
    return baton::app::run_bench_handoff(bench_handoff);
  }
  return bench_perplexity->parsed() ? baton::app::run_bench_perplexity(perplexity)
                                    : baton::app::run_serve(serve);
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("baton"));
  try {
    return run(argc, argv);
  } catch (const baton::StartupError& error) {
    fmt::print(stderr, "baton: {}\n", error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "baton: unexpected: {}\n", error.what());
  }
  return 1;
}
