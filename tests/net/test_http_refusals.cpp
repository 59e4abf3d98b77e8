// What is refused before a body is read: callers without the right to call, transfer codings,
// connections beyond the limit.

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <vector>

#include "loopback.h"
#include "net/http_error.h"

namespace meshnet::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kToken = "Authorization: Bearer right\r\n";

void check_token(const HttpRequest& header) {
  if (!header.target().starts_with("/inner")) return;
  if (header[http::field::authorization] == "Bearer right") return;
  throw HttpError(401, "unauthorized", "this endpoint needs a token");
}

std::string post_head(const std::string& path, std::size_t length, std::string_view fields = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(length) +
         "\r\n" + std::string(fields) + "\r\n";
}

/// The answer to a header alone, sent without a body; the connection ends with it.
RawAnswer refused(const TestServer& server, const std::string& header) {
  RawSocket client = server.connect();
  RawAnswer answer = client.request(header);
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  EXPECT_EQ(client.receive_all(), "");
  return answer;
}

TEST(HttpHeaderCheck, RefusesBeforeTheBody) {
  TestServer server(echo, {}, check_token);
  const auto start = std::chrono::steady_clock::now();
  for (const std::size_t length : {std::size_t{3}, std::size_t{20} << 20, std::size_t{1} << 40}) {
    const RawAnswer answer = refused(server, post_head("/inner", length));
    EXPECT_EQ(answer.status, 401) << length;
    EXPECT_THAT(answer.body, HasSubstr("\"unauthorized\"")) << length;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(HttpHeaderCheck, RefusesBeforeContinue) {
  TestServer server(echo, {}, check_token);
  const std::string expect = "Expect: 100-continue\r\n";
  EXPECT_EQ(refused(server, post_head("/inner", 3, expect)).status, 401);
  RawSocket client = server.connect();
  client.send(post_head("/inner", 3, expect + std::string(kToken)));
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(client.request("abc").body, "/inner:abc");
}

TEST(HttpHeaderCheck, RefusesChunkedBodies) {
  TestServer server(echo, {}, check_token);
  EXPECT_EQ(refused(server, "POST /inner HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
                .status,
            401);
}

TEST(HttpHeaderCheck, AClientThatSendsItsWholeBodyFirstSeesTheRefusal) {
  TestServer server(echo, {}, check_token);
  RawSocket client = server.connect();
  client.send(post_head("/inner", 20 << 20));
  client.send(std::string(20 << 20, 'x'));
  EXPECT_EQ(client.receive_answer().status, 401);
}

TEST(HttpHeaderCheck, EveryRequestOfAConnectionIsChecked) {
  TestServer server(echo, {}, check_token);
  RawSocket client = server.connect();
  EXPECT_EQ(client.request(post_head("/inner", 1, kToken) + "a").status, 200);
  EXPECT_EQ(client.request(post_head("/open", 1) + "b").body, "/open:b");
  EXPECT_EQ(client.request(post_head("/inner", 1) + "c").status, 401);
}

TEST(HttpTransferEncoding, AnythingButChunkedIs501) {
  TestServer server(echo);
  for (const std::string coding : {"gzip, chunked",
                                   "gzip",
                                   "identity",
                                   "chunked, gzip",
                                   "chunked, chunked",
                                   "gzip\r\nTransfer-Encoding: chunked",
                                   "gzip\r\nContent-Length: 3"}) {
    const std::string head = "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ";
    const RawAnswer answer =
        refused(server, head + coding + "\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + std::string(kGet));
    EXPECT_EQ(answer.status, 501) << coding;
    EXPECT_THAT(answer.body, HasSubstr("expected chunked and nothing else")) << coding;
  }
  EXPECT_EQ(server.connect()
                .request("POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
                         "3\r\nabc\r\n0\r\n\r\n")
                .body,
            "/c:abc");
}

ServerLimits two_connections() {
  ServerLimits limits;
  limits.max_connections = 2;
  return limits;
}

TEST(HttpConnectionLimit, OneMoreIs503AndClosed) {
  TestServer server(echo, two_connections());
  RawSocket first = server.connect();
  RawSocket second = server.connect();
  EXPECT_EQ(first.request(kGet).status, 200);
  EXPECT_EQ(second.request(kGet).status, 200);
  for (int i = 0; i < 20; ++i) {
    RawSocket third = server.connect();
    third.try_send(kGet);  // or not: the answer does not wait for a request
    const RawAnswer answer = third.receive_answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
    EXPECT_THAT(answer.body, HasSubstr("\"too_many_connections\""));
    EXPECT_EQ(third.receive_all(), "");
  }
  EXPECT_EQ(first.request(kGet).status, 200) << "those that are served notice nothing";
}

TEST(HttpConnectionLimit, HoldsForConnectionsThatComeAtOnce) {
  TestServer server(echo, two_connections());
  std::vector<RawSocket> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(server.connect());
  int served = 0;
  for (RawSocket& client : clients) {
    client.try_send(kGet);
    if (client.receive_answer().status == 200) ++served;
  }
  EXPECT_EQ(served, 2);
}

TEST(HttpConnectionLimit, APlaceIsFreeWhenAConnectionEnds) {
  TestServer server(echo, two_connections());
  RawSocket first = server.connect();
  RawSocket second = server.connect();
  EXPECT_EQ(first.request(kGet).status, 200);
  EXPECT_EQ(second.request("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status, 200);
  EXPECT_EQ(second.receive_all(), "");
  second.close();
  // The server may see the end a moment later than the client.
  int status = 503;
  for (int i = 0; status == 503 && i < 1000; ++i) {
    RawSocket third = server.connect();
    third.try_send(kGet);
    status = third.receive_answer().status;
  }
  EXPECT_EQ(status, 200);
}

TEST(HttpConnectionLimit, LeavesFileDescriptorsForOthers) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  EXPECT_EQ(ServerLimits{}.max_connections, files.rlim_cur / 4 * 3);
}

}  // namespace
}  // namespace meshnet::testing
