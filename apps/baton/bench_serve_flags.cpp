// Flags of `baton bench serve`: vLLM's spellings where it has the flag.
#include "apps/baton/flags.h"
#include "apps/baton/options.h"

namespace baton::app {
namespace {

void add_workload_flags(CLI::App& app, BenchServeOptions& options) {
  static const std::map<std::string, serving::Dataset> datasets = {
      {"random", serving::Dataset::kRandom}, {"trace", serving::Dataset::kTrace}};
  serving::WorkloadOptions& workload = options.workload;
  flag(app, "--dataset-name", workload.dataset, "random, or trace: arrivals and lengths of a file")
      ->transform(one_of(datasets))
      ->default_str("random");
  flag(app, "--dataset-path", workload.trace_path, "trace in Mooncake's format (JSON lines)");
  flag(app, "--scale-lengths", workload.scale_lengths, "factor on a trace's token counts");
  flag(app, "--scale-time", workload.scale_time, "factor on the time between a trace's requests");
  flag(app, "--num-prompts", workload.num_prompts,
       "requests; 0: 1,000 random ones, or the whole trace")
      ->check(CLI::NonNegativeNumber);
  flag(app, "--request-rate", options.request_rate,
       "requests a second, sent whether or not others are answered; inf: all at once (default)");
  flag(app, "--burstiness", workload.burstiness,
       "of the arrivals: 1 Poisson, less is burstier, more is more even");
  flag(app, "--random-input-len", workload.random_input_tokens, "tokens of a random prompt");
  flag(app, "--random-output-len", workload.random_output_tokens, "tokens of its answer");
  flag(app, "--random-prefix-len", workload.random_prefix_tokens,
       "tokens before it, equal for all");
  flag(app, "--random-range-ratio", workload.random_range_ratio,
       "R: lengths are uniform from (1 - R) to (1 + R) times the given ones");
  flag(app, "--seed", workload.seed, "of prompts and arrivals; another one makes cold prompts");
  flag(app, "--token-ids", options.token_ids, "LOW:HIGH, the ids that prompts are made of");
}

void add_report_flags(CLI::App& app, BenchServeOptions& options) {
  flag(app, "--percentile-metrics", options.percentile_metrics,
       "what is printed: ttft, ttst, tpot, itl, e2el")
      ->delimiter(',');
  flag(app, "--metric-percentiles", options.metric_percentiles, "which percentiles of them")
      ->delimiter(',');
  flag(app, "--goodput", options.goodput,
       "METRIC:MS ...: count the requests that meet all of these, too")
      ->delimiter(',');
  flag(app, "--save-result", options.save_result, "JSON file for the result");
  app.add_flag("--save-detailed", options.save_detailed, "with the generated token ids");
}

}  // namespace

void add_bench_flags(CLI::App& app, BenchServeOptions& options) {
  static const std::map<std::string, BenchPromptFormat> formats = {
      {"auto", BenchPromptFormat::kAuto},
      {"ids", BenchPromptFormat::kIds},
      {"text", BenchPromptFormat::kText}};
  flag(app, "--base-url", options.base_url, "http://HOST:PORT of the server");
  flag(app, "--endpoint", options.endpoint, "/v1/completions or /v1/chat/completions");
  flag(app, "--model", options.model, "its name there; default: the first in /v1/models")
      ->envname("");  // BATON_MODEL is the server's, and a file
  flag(app, "--api-key", options.api_key, "key to send; better in the variable")
      ->envname("OPENAI_API_KEY");
  flag(app, "--prompt-format", options.prompt_format,
       "ids, or text: a word for each token; auto: ids for completions, text for chats")
      ->transform(one_of(formats))
      ->default_str("auto");
  add_workload_flags(app, options);
  flag(app, "--max-concurrency", options.max_concurrency, "requests under way at most; 0: no bound")
      ->check(CLI::NonNegativeNumber);
  flag(app, "--num-warmups", options.num_warmups, "requests before, one by one, not counted")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--ignore-eos", options.ignore_eos, "answers have the asked length");
  app.add_flag("!--no-token-ids", options.return_token_ids,
               "do not ask for token ids in chunks (servers that refuse the field)");
  flag(app, "--temperature", options.temperature, "of sampling; 0: greedy");
  flag(app, "--request-timeout", options.request_timeout_s, "seconds of silence in mid-answer")
      ->check(CLI::PositiveNumber);
  add_report_flags(app, options);
}

}  // namespace baton::app
