#include <gmock/gmock.h>

#include "net/http_client.h"

namespace meshnet {
namespace {

using ::testing::HasSubstr;

std::string url_error(const std::string& text) {
  try {
    const Url url = parse_url(text);
    return "accepted as " + authority(url);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

std::string listen_error(const std::string& text) {
  try {
    parse_listen(text);
    return "accepted";
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST(Url, TakesNamesAndAddresses) {
  EXPECT_EQ(parse_url("http://10.0.0.1:8001"), (Url{"10.0.0.1", 8001}));
  EXPECT_EQ(parse_url("http://gpu-box_2.lan:65535/"), (Url{"gpu-box_2.lan", 65535}));
  EXPECT_EQ(parse_url("http://[::1]:8001"), (Url{"::1", 8001}));
  EXPECT_EQ(parse_url("http://[fe80::1]:1/"), (Url{"fe80::1", 1}));
}

TEST(Url, AuthorityBracketsIpv6) {
  EXPECT_EQ(authority({"::1", 8001}), "[::1]:8001");
  EXPECT_EQ(authority({"127.0.0.1", 8001}), "127.0.0.1:8001");
  EXPECT_EQ(authority({"tail", 80}), "tail:80");
}

TEST(Url, SaysHowToWriteIpv6) {
  EXPECT_THAT(url_error("http://::1:8001"), HasSubstr("needs brackets: http://[::1]:8001"));
  EXPECT_THAT(listen_error("::1:8001"), HasSubstr("needs brackets: [::1]:8001"));
  EXPECT_THAT(listen_error(":::8001"), HasSubstr("needs brackets: [::]:8001"));
}

TEST(Url, RefusesEverythingElseAndNamesIt) {
  const char* bad[] = {"",
                       "10.0.0.1:8001",
                       "https://a:1",
                       "http://",
                       "http://a",
                       "http://[::1]",
                       "http://:8001",
                       "http://a:",
                       "http://a:0",
                       "http://a:65536",
                       "http://a:-1",
                       "http://a:+1",
                       "http://a: 1",
                       "http://a:80x",
                       "http://a:1/path",
                       "http://a:1?x",
                       "http://user@a:1",
                       "http://a b:1",
                       "http://[::zz]:1",
                       "http://[127.0.0.1]:1",
                       "http://[]:1",
                       "http://a:99999999999999999999"};
  for (const std::string text : bad) {
    EXPECT_THAT(url_error(text), HasSubstr("'" + text + "': ")) << text;
  }
}

TEST(Listen, TakesBothFamilies) {
  EXPECT_EQ(parse_listen("0.0.0.0:8001"), tcp::endpoint(tcp::v4(), 8001));
  EXPECT_EQ(parse_listen("[::]:8002"), tcp::endpoint(tcp::v6(), 8002));
  EXPECT_EQ(parse_listen("127.0.0.1:0").port(), 0);
}

TEST(Listen, RefusesNamesAndNonsense) {
  EXPECT_THAT(listen_error("localhost:8001"), HasSubstr("got 'localhost'"));
  for (const std::string text :
       {"", "8001", "0.0.0.0", "[::]", "0.0.0.0:x", "0.0.0.0:70000", ":1"}) {
    EXPECT_THAT(listen_error(text), HasSubstr("'" + text + "': ")) << text;
  }
}

}  // namespace
}  // namespace meshnet
