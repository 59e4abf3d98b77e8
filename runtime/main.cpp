#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "runtime/check.h"
#include "runtime/node.h"
#include "runtime/plan.h"
#include "runtime/settings.h"
#include "runtime/version.h"

namespace {

/// Logs go to standard error, one line each: time in UTC, level, message.
void set_up_log(const std::string& level) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("meshnet"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %v", spdlog::pattern_time_type::utc);
  spdlog::set_level(spdlog::level::from_str(level));
}

/// LibTorch's OpenMP threads spin while they wait for work, by default for so long that two nodes
/// on one machine take each other's cores: two halves of SmolLM2 beside a busy compiler took ten
/// times as long. libgomp reads the setting once, when it is loaded, so the process starts again
/// with it.
void stop_idle_threads_from_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("GOMP_SPINCOUNT", "1000", 1);
  ::execv("/proc/self/exe", argv);  // where that cannot be, the node runs all the same
}

int run_serve(const std::string& config, const std::string& node_name) {
  const auto topology = meshnet::read_topology(config);
  const auto& self = topology.node(node_name);
  set_up_log(self.log_level);
  meshnet::serve(topology, self);
  return 0;
}

int run_check(const std::string& config, const std::string& node_name) {
  const auto topology = meshnet::read_topology(config);
  if (!node_name.empty()) topology.node(node_name);
  set_up_log("warn");
  const auto report = meshnet::check_topology(topology, node_name);
  std::fputs(report.text.c_str(), stdout);
  return report.ok ? 0 : 1;
}

int run_plan(const meshnet::PlanOptions& options) {
  set_up_log("warn");
  const auto plan = meshnet::plan_layers(options);
  std::fputs(plan.text.c_str(), stdout);
  return plan.fits ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Meshnet node: one shard of a large language model, served over HTTP"};
  app.set_version_flag("--version", meshnet::kVersion);
  app.require_subcommand(1);
  std::string config;
  std::string node;
  auto* serve = app.add_subcommand("serve", "run one node of a topology file");
  serve->add_option("--config", config, "topology file (YAML)")->required();
  serve->add_option("--node", node, "name of this node in the file")->required();
  auto* check =
      app.add_subcommand("check", "say what is wrong with configuration, model, memory and route");
  check->add_option("--config", config, "topology file (YAML)")->required();
  check->add_option("--node", node, "only this node (default: all of the file)");
  meshnet::PlanOptions options;
  auto* plan =
      app.add_subcommand("plan", "propose the layers of each node, and say what they take");
  plan->add_option("--model", options.model, "model directory")->required();
  plan->add_option("--nodes", options.nodes, "how many nodes")
      ->required()
      ->check(CLI::Range(1, 4096));
  plan->add_option("--memory", options.memory, "of each node, or of all alike: 24GiB,16GiB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  plan->add_option("--tokens", options.tokens, "length of a session")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  plan->add_option("--sessions", options.sessions, "sessions at once")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  CLI11_PARSE(app, argc, argv);

  std::signal(SIGPIPE, SIG_IGN);  // whoever reads the log may go; the node stays
  if (serve->parsed()) stop_idle_threads_from_spinning(argv);
  try {
    if (plan->parsed()) return run_plan(options);
    return serve->parsed() ? run_serve(config, node) : run_check(config, node);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "meshnet: %s\n", error.what());
    return 1;
  }
}
