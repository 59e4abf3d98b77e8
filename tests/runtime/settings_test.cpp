#include "runtime/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace meshnet {
namespace {

using testing::HasSubstr;

class SettingsTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("settings_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path write(const std::string& text) {
    const auto file = dir_ / "topology.yaml";
    std::ofstream(file) << text;
    return file;
  }
  Topology read(const std::string& text) { return read_topology(write(text)); }
  std::string error_of(const std::string& text) {
    try {
      read(text);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path dir_;
};

/// Sets an environment variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = ::getenv(name)) old_ = old;
    ::setenv(name, value, 1);
  }
  ~Environment() {
    if (old_) {
      ::setenv(name_, old_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

constexpr char kNodes[] = R"(
nodes:
  head: {listen: "0.0.0.0:8001", url: "http://10.0.0.1:8001", layers: 0-20}
  tail: {listen: "[::]:8002", url: "http://[fd00::2]:8002", layers: 21-23}
)";

TEST_F(SettingsTest, ReadsEveryKey) {
  const auto topology = read(R"(
model: /models/Qwen2.5-0.5B-Instruct
served_name: qwen2.5-0.5b
dtype: auto
device: auto
threads: 0
max_context: auto
deterministic: false
cache: {enabled: true, ttl_seconds: 30, max_sessions: 4, max_bytes: 2GiB}
limits: {max_body: 32MiB, max_queue: 7, prefill_chunk: 128}
timeouts: {connect_ms: 100, decode_ms: 200, prefill_ms_per_token: 3}
cluster_token_file: /etc/meshnet/token
log_level: debug
nodes:
  head: {listen: "0.0.0.0:8001", url: "http://10.0.0.1:8001", layers: 0-20}
  tail: {listen: "[::]:8002", url: "http://10.0.0.2:8002", layers: 21-23, device: "cuda:1", dtype: float16, limits: {max_queue: 9}}
)");
  ASSERT_EQ(topology.nodes.size(), 2U);
  const auto& head = topology.node("head");
  EXPECT_EQ(head.model, "/models/Qwen2.5-0.5B-Instruct");
  EXPECT_EQ(head.served_name, "qwen2.5-0.5b");
  EXPECT_EQ(head.layers, (LayerRange{0, 21}));
  EXPECT_EQ(head.dtype, std::nullopt);
  EXPECT_EQ(head.cache.ttl, std::chrono::seconds(30));
  EXPECT_EQ(head.cache.max_sessions, 4);
  EXPECT_EQ(head.cache.max_bytes, int64_t{2} << 30);
  EXPECT_EQ(head.limits.max_body, 32 << 20);
  EXPECT_EQ(head.timeouts.connect, std::chrono::milliseconds(100));
  EXPECT_EQ(head.timeouts.prefill_per_token, std::chrono::milliseconds(3));
  EXPECT_EQ(head.log_level, "debug");
  const auto& tail = topology.node("tail");
  EXPECT_EQ(tail.device, "cuda:1");
  EXPECT_EQ(tail.dtype, Dtype::kFloat16);
  EXPECT_EQ(tail.limits.max_queue, 9);
  EXPECT_EQ(tail.limits.max_body, 32 << 20) << "a node's map overrides key by key";
  EXPECT_EQ(tail.listen.address().to_string(), "::");
}

TEST_F(SettingsTest, Defaults) {
  const auto topology = read(std::string("model: /models/SmolLM2") + kNodes);
  const auto& node = topology.node("tail");
  EXPECT_EQ(node.served_name, "SmolLM2") << "the directory's name";
  EXPECT_EQ(node.device, "auto");
  EXPECT_EQ(node.cache.ttl, std::chrono::seconds(600));
  EXPECT_EQ(node.cache.max_sessions, 8);
  EXPECT_EQ(node.limits.max_body, 64 << 20);
  EXPECT_EQ(node.limits.max_queue, 64);
  EXPECT_EQ(node.limits.prefill_chunk, 512);
  EXPECT_EQ(node.timeouts.connect, std::chrono::milliseconds(2000));
  EXPECT_EQ(node.timeouts.decode, std::chrono::milliseconds(10000));
  EXPECT_EQ(node.timeouts.prefill_per_token, std::chrono::milliseconds(50));
  EXPECT_EQ(node.url.host, "fd00::2");
}

TEST_F(SettingsTest, EnvironmentOverridesTheFile) {
  const Environment ttl("MESHNET_KV_TTL_SECONDS", "11");
  const Environment sessions("MESHNET_KV_MAX_SESSIONS", "3");
  const auto topology = read(std::string("model: /m\ncache: {ttl_seconds: 30}") + kNodes);
  EXPECT_EQ(topology.node("head").cache.ttl, std::chrono::seconds(11));
  EXPECT_EQ(topology.node("tail").cache.max_sessions, 3);
  const Environment bad("MESHNET_KV_TTL_SECONDS", "soon");
  EXPECT_THAT(error_of(std::string("model: /m") + kNodes), HasSubstr("MESHNET_KV_TTL_SECONDS"));
}

TEST_F(SettingsTest, ModelPathExpandsVariables) {
  const Environment home("MODELS_OF_TEST", "/data");
  EXPECT_EQ(read(std::string("model: ${MODELS_OF_TEST}/a") + kNodes).node("head").model, "/data/a");
  EXPECT_EQ(read(std::string("model: ${UNSET_OF_TEST:-/fallback}/a") + kNodes).node("head").model,
            "/fallback/a");
  EXPECT_THAT(error_of(std::string("model: ${UNSET_OF_TEST}/a") + kNodes),
              HasSubstr("UNSET_OF_TEST is not set"));
  const Environment tilde("HOME", "/home/someone");
  EXPECT_EQ(read(std::string("model: ~/a") + kNodes).node("head").model, "/home/someone/a");
}

TEST_F(SettingsTest, MistakesNameFileLineAndKey) {
  const auto mistakes = error_of(R"(model: /m
thread: 2
nodes:
  head: {listen: "0.0.0.0:8001", url: "http://10.0.0.1:8001", layers: 20-0}
  tail:
    listen: "::1:8002"
    url: "http://10.0.0.2:8002"
    layers: 21-23
    cache: {ttl_seconds: 0, size: 3}
)");
  EXPECT_THAT(mistakes, HasSubstr("topology.yaml:2: thread: unknown key"));
  EXPECT_THAT(
      mistakes,
      HasSubstr(":4: nodes.head.layers: expected an inclusive range like 0-20, got '20-0'"));
  EXPECT_THAT(mistakes, HasSubstr(":6: nodes.tail.listen: "));
  EXPECT_THAT(
      mistakes,
      HasSubstr(
          ":9: nodes.tail.cache.ttl_seconds: expected a whole number of at least 1, got '0'"));
  EXPECT_THAT(mistakes, HasSubstr(":9: nodes.tail.cache.size: unknown key"));
}

TEST_F(SettingsTest, RefusesWhatIsNoTopology) {
  EXPECT_THAT(error_of("nodes: {a: ["), HasSubstr("not valid YAML"));
  EXPECT_THAT(error_of("model: /m"), HasSubstr("nodes: expected a mapping"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected a mapping"));
  EXPECT_THAT(error_of(kNodes), HasSubstr("nodes.head.model"));
  EXPECT_THAT(error_of("model: /m\nnodes: {a: {listen: \"127.0.0.1:1\", layers: 0-1}}"),
              HasSubstr("nodes.a.url: this key is required"));
  EXPECT_THAT(error_of("model: /m\nnodes: {a: 3}"), HasSubstr("nodes.a: expected a mapping"));
  EXPECT_THAT(error_of("model: /m\nnodes: {\"a,b\": {listen: \"127.0.0.1:1\", url: \"http://h:1\", "
                       "layers: 0-1}}"),
              HasSubstr("a node name"));
  EXPECT_THAT(error_of(std::string("model: /m\nmodel: /n") + kNodes),
              HasSubstr("model: this key stands here twice"));
  for (const auto* line : {"device: gpu",
                           "device: 'cuda:'",
                           "dtype: int8",
                           "threads: -1",
                           "threads: many",
                           "max_context: 0",
                           "deterministic: maybe",
                           "limits: {max_body: 3 apples}",
                           "timeouts: {connect_ms: 1.5}"}) {
    const std::string key = std::string(line).substr(0, std::string(line).find(':'));
    EXPECT_THAT(error_of(std::string("model: /m\n") + line + kNodes), HasSubstr(":2: " + key))
        << line;
  }
  EXPECT_THROW(read_topology(dir_ / "missing.yaml"), std::runtime_error);
}

TEST_F(SettingsTest, TwoNodesCannotShareAUrl) {
  EXPECT_THAT(error_of(R"(model: /m
nodes:
  a: {listen: "0.0.0.0:8001", url: "http://10.0.0.1:8001", layers: 0-1}
  b: {listen: "0.0.0.0:8001", url: "http://10.0.0.1:8001", layers: 2-3}
)"),
              HasSubstr(":4: nodes.b.url: 10.0.0.1:8001 is the url of 'a', too"));
  EXPECT_THAT(error_of(std::string("model: /m\ntimeouts: {connect_ms: 99999999999}") + kNodes),
              HasSubstr("at most a day"));
}

TEST_F(SettingsTest, UnknownNodeListsTheNames) {
  const auto topology = read(std::string("model: /m") + kNodes);
  try {
    topology.node("middle");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no node 'middle'; it has head, tail"));
  }
}

TEST_F(SettingsTest, LayersAgainstTheModel) {
  const auto topology = read(std::string("model: /m") + kNodes);
  EXPECT_TRUE(check_layers(topology, 24).empty());
  EXPECT_THAT(check_layers(topology, 23),
              testing::ElementsAre(HasSubstr(
                  "nodes.tail.layers: 21-23 goes beyond the model, whose layers are 0-22")));
  EXPECT_THAT(check_layers(topology, 30),
              testing::ElementsAre(HasSubstr("no node holds layers 24-29")));
}

TEST_F(SettingsTest, ClusterTokenFromFileOrEnvironment) {
  const auto file = dir_ / "token";
  auto topology = read("model: /m\ncluster_token_file: " + file.string() + kNodes);
  EXPECT_THROW(read_cluster_token(topology.node("head")), std::runtime_error);
  std::ofstream(file) << "secret \n";
  EXPECT_EQ(read_cluster_token(topology.node("head")), "secret");
  const Environment token("MESHNET_CLUSTER_TOKEN", "other");
  EXPECT_EQ(read_cluster_token(topology.node("head")), "other");
}

TEST(ConfigsTest, EveryFileInConfigsLoads) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MESHNET_CONFIGS_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    const auto topology = read_topology(entry.path());
    int64_t layers = 0;
    for (const auto& node : topology.nodes) layers = std::max(layers, node.layers.last);
    EXPECT_TRUE(check_layers(topology, layers).empty()) << entry.path();
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace meshnet
