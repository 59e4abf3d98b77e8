#include <gmock/gmock.h>

#include <limits>

#include "net/http_error.h"
#include "net/wire.h"
#include "wire_values.h"

namespace meshnet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ForwardRequest full_request() {
  ForwardRequest step;
  step.session = "3f2a-7";
  step.mode = CacheMode::kPrefill;
  step.past_len = 64;
  step.hop_index = 2;
  step.start_layer = 15;
  step.route = {"middle", "tail_2.b"};
  step.epoch = 3;
  step.model_fingerprint = "sha256:aa";
  step.recipe_fingerprint = "sha256:bb";
  step.more = true;
  step.meta = R"({"prompt_ids":[1,2],"text":"größer"})";
  step.trace = "req-1";
  step.hidden = hidden_states(2);
  return step;
}

TEST(WireForward, CarriesEveryField) {
  const ForwardRequest sent = full_request();
  const ForwardRequest got = parse_forward(format_forward(sent, 1), kDefaults);
  EXPECT_EQ(got.session, sent.session);
  EXPECT_EQ(got.mode, sent.mode);
  EXPECT_EQ(got.past_len, sent.past_len);
  EXPECT_EQ(got.hop_index, sent.hop_index);
  EXPECT_EQ(got.start_layer, sent.start_layer);
  EXPECT_EQ(got.protocol, kOwnProtocol);
  EXPECT_EQ(got.route, sent.route);
  EXPECT_EQ(got.epoch, sent.epoch);
  EXPECT_EQ(got.model_fingerprint, sent.model_fingerprint);
  EXPECT_EQ(got.recipe_fingerprint, sent.recipe_fingerprint);
  EXPECT_EQ(got.more, sent.more);
  EXPECT_EQ(got.meta, sent.meta);
  EXPECT_EQ(got.trace, sent.trace);
  expect_same(got.hidden, sent.hidden);
}

TEST(WireForward, BytesTravelExactly) {
  // -0, inf, a signalling and a quiet NaN with payloads, the smallest subnormal, and 0x0d0a.
  const std::string bf16("\x00\x80\x80\x7f\x81\x7f\xff\xff\x01\x00\x0d\x0a\x00\x00\xc0\xff", 16);
  for (const auto& [dtype, tokens] : {std::pair{Dtype::kBFloat16, 2},
                                      std::pair{Dtype::kFloat16, 2},
                                      std::pair{Dtype::kFloat32, 1}}) {
    ForwardRequest sent = full_request();
    sent.hidden = {dtype, tokens, kHidden, bf16};
    expect_same(parse_forward(format_forward(sent, 1), kDefaults).hidden, sent.hidden);
    const ForwardReply reply{sent.hidden, ""};
    const ForwardReply got = parse_forward_reply(format_forward_reply(reply), kDefaults);
    expect_same(std::get<HiddenStates>(got.result), sent.hidden);
  }
}

TEST(WireForward, DecodeCarriesOneToken) {
  ForwardRequest sent;
  sent.session = "s";
  sent.mode = CacheMode::kDecode;
  sent.past_len = 7;
  sent.hidden = hidden_states(1);
  const ForwardRequest got = parse_forward(format_forward(sent, 1), kDefaults);
  EXPECT_EQ(got.mode, CacheMode::kDecode);
  EXPECT_EQ(got.past_len, 7);
  EXPECT_EQ(got.start_layer, std::nullopt);
  EXPECT_FALSE(got.more);
  EXPECT_TRUE(got.meta.empty());
  EXPECT_TRUE(got.route.empty());
}

TEST(WireForward, ProtocolZeroSeesOnlyTheFiveHeaders) {
  ForwardRequest sent = full_request();
  EXPECT_THROW(format_forward(sent, 0), std::logic_error);  // it would answer a chunk with a token
  sent.more = false;
  const HttpRequest request = format_forward(sent, 0);
  std::vector<std::string> names;
  for (const auto& field : request) {
    if (field.name_string().starts_with("X-Meshnet-")) names.emplace_back(field.name_string());
  }
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("X-Meshnet-Session",
                                              "X-Meshnet-Cache",
                                              "X-Meshnet-Past-Len",
                                              "X-Meshnet-Hop-Index",
                                              "X-Meshnet-Start-Layer"));
  EXPECT_EQ(request.body(), sent.hidden.bytes);
  EXPECT_EQ(request.target(), "/forward");
  EXPECT_EQ(request.method(), http::verb::post);
}

TEST(WireForward, AbsentHeadersMeanTheDefaults) {
  HttpRequest request(http::verb::post, "/forward", 11);
  request.body() = zeros(3, Dtype::kBFloat16);
  const ForwardRequest step = parse_forward(request, {Dtype::kBFloat16, kHidden, 100});
  EXPECT_EQ(step.mode, CacheMode::kStateless);
  EXPECT_EQ(step.past_len, 0);
  EXPECT_EQ(step.protocol, 0);
  EXPECT_EQ(step.epoch, 1);
  EXPECT_EQ(step.hidden.dtype, Dtype::kBFloat16);
  EXPECT_EQ(step.hidden.tokens, 3);
  EXPECT_EQ(step.hidden.hidden_size, kHidden);
}

TEST(WireForward, UnknownHeadersAndLaterProtocolsPass) {
  HttpRequest request = format_forward(full_request(), 1);
  request.set("X-Meshnet-Future", "whatever");
  request.set("X-Meshnet-Protocol", "2");
  EXPECT_EQ(parse_forward(request, kDefaults).protocol, 2);
}

// One change to a valid request each, and what the refusal must say.
struct BadForward {
  const char* name;
  const char* header;
  const char* value;  // nullptr removes the header
  const char* expected_text;
  CacheMode mode = CacheMode::kPrefill;
};

class WireForwardRefuses : public ::testing::TestWithParam<BadForward> {};

std::string refusal(const HttpRequest& request, const WireDefaults& defaults = kDefaults) {
  try {
    parse_forward(request, defaults);
    return "accepted";
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status, 400u);
    EXPECT_EQ(error.error, kInvalidRequest);
    return error.what();
  }
}

TEST_P(WireForwardRefuses, NamingTheHeader) {
  const BadForward& bad = GetParam();
  ForwardRequest step = full_request();
  step.mode = bad.mode;
  if (bad.mode != CacheMode::kPrefill) step.more = false;
  if (bad.mode == CacheMode::kDecode) step.hidden = hidden_states(1);
  if (bad.mode == CacheMode::kStateless) step.past_len = 0;
  HttpRequest request = format_forward(step, 1);
  ASSERT_EQ(refusal(request), "accepted");
  request.erase(bad.header);
  if (bad.value) request.set(bad.header, bad.value);
  EXPECT_THAT(refusal(request), AllOf(HasSubstr(bad.header), HasSubstr(bad.expected_text)));
}

const std::string kLongText(129, 'x');
const std::string kManyNames = [] {
  std::string names = "n0";
  for (int i = 1; i < 65; ++i) names += ",n" + std::to_string(i);
  return names;
}();

INSTANTIATE_TEST_SUITE_P(
    Headers,
    WireForwardRefuses,
    ::testing::Values(
        BadForward{"SessionMissing", "X-Meshnet-Session", nullptr, "got none"},
        BadForward{"SessionEmpty", "X-Meshnet-Session", "", "1 to 128"},
        BadForward{"SessionLong", "X-Meshnet-Session", kLongText.c_str(), "1 to 128"},
        BadForward{"SessionSpace", "X-Meshnet-Session", "a b", "got 'a b'"},
        BadForward{"SessionNotAscii", "X-Meshnet-Session", "s\xc3\xa4", "printable ASCII"},
        BadForward{
            "CacheUnknown", "X-Meshnet-Cache", "Prefill", "prefill or decode, got 'Prefill'"},
        BadForward{"CacheEmpty", "X-Meshnet-Cache", "", "prefill or decode, got ''"},
        BadForward{"PastLenMissing", "X-Meshnet-Past-Len", nullptr, "decode", CacheMode::kDecode},
        BadForward{"PastLenMinus", "X-Meshnet-Past-Len", "-1", "0 or more, got '-1'"},
        BadForward{"PastLenPlus", "X-Meshnet-Past-Len", "+1", "got '+1'"},
        BadForward{"PastLenText", "X-Meshnet-Past-Len", "1x", "got '1x'"},
        BadForward{"PastLenHex", "X-Meshnet-Past-Len", "0x10", "got '0x10'"},
        BadForward{"PastLenFraction", "X-Meshnet-Past-Len", "1.0", "got '1.0'"},
        BadForward{"PastLenInnerSpace", "X-Meshnet-Past-Len", "1 2", "got '1 2'"},
        BadForward{"PastLenEmpty", "X-Meshnet-Past-Len", "", "got ''"},
        BadForward{"PastLenHuge", "X-Meshnet-Past-Len", "9223372036854775807", "0 or more"},
        BadForward{"PastLenOverflow", "X-Meshnet-Past-Len", "18446744073709551617", "0 or more"},
        BadForward{"PastLenStateless", "X-Meshnet-Past-Len", "3", "got 3", CacheMode::kStateless},
        BadForward{"HopIndexMinus", "X-Meshnet-Hop-Index", "-2", "0 or more"},
        BadForward{"StartLayerMinus", "X-Meshnet-Start-Layer", "-15", "0 or more"},
        BadForward{"StartLayerText", "X-Meshnet-Start-Layer", "first", "got 'first'"},
        BadForward{"ProtocolText", "X-Meshnet-Protocol", "one", "got 'one'"},
        BadForward{"RouteEmpty", "X-Meshnet-Route", "", "node names"},
        BadForward{"RouteGap", "X-Meshnet-Route", "a,,b", "node names"},
        BadForward{"RouteTrailingComma", "X-Meshnet-Route", "a,", "node names"},
        BadForward{"RouteUrl", "X-Meshnet-Route", "http://evil:1", "node names"},
        BadForward{"RouteMany", "X-Meshnet-Route", kManyNames.c_str(), "at most 64"},
        BadForward{"EpochZero", "X-Meshnet-Epoch", "0", "1 or more, got '0'"},
        BadForward{"EpochMinus", "X-Meshnet-Epoch", "-1", "1 or more"},
        BadForward{"DtypeUnknown", "X-Meshnet-Dtype", "float64", "bfloat16, float16 or float32"},
        BadForward{"DtypeCase", "X-Meshnet-Dtype", "BFLOAT16", "got 'BFLOAT16'"},
        BadForward{"ShapeTwo", "X-Meshnet-Shape", "2,4", "1,tokens,4"},
        BadForward{"ShapeFour", "X-Meshnet-Shape", "1,2,4,1", "1,tokens,4"},
        BadForward{"ShapeBatch", "X-Meshnet-Shape", "2,1,4", "1,tokens,4"},
        BadForward{"ShapeHidden", "X-Meshnet-Shape", "1,4,2", "1,tokens,4"},
        BadForward{"ShapeZero", "X-Meshnet-Shape", "1,0,4", "1,tokens,4"},
        BadForward{"ShapeMinus", "X-Meshnet-Shape", "1,-2,4", "1,tokens,4"},
        BadForward{"ShapeOverflow", "X-Meshnet-Shape", "1,9223372036854775809,4", "1,tokens,4"},
        BadForward{"ShapeEmpty", "X-Meshnet-Shape", "", "1,tokens,4"},
        BadForward{"ShapeCommas", "X-Meshnet-Shape", ",,", "1,tokens,4"},
        BadForward{"ShapeHuge", "X-Meshnet-Shape", "1,4611686018427388,4", "at most 100 tokens"},
        BadForward{"ModelSpace", "X-Meshnet-Model", "a b", "printable"},
        BadForward{"RecipeLong", "X-Meshnet-Recipe", kLongText.c_str(), "1 to 128"},
        BadForward{"TraceNotAscii", "X-Meshnet-Trace", "\xff", "printable"},
        BadForward{"MoreTwo", "X-Meshnet-More", "2", "0 or 1"},
        BadForward{"MoreTrue", "X-Meshnet-More", "true", "0 or 1"},
        BadForward{"MoreDecode", "X-Meshnet-More", "1", "only with", CacheMode::kDecode},
        BadForward{"MoreStateless", "X-Meshnet-More", "1", "only with", CacheMode::kStateless},
        BadForward{"MetaLong", "X-Meshnet-Meta-Length", "100000", "bytes of the body"},
        BadForward{"MetaMinus", "X-Meshnet-Meta-Length", "-1", "0 or more"},
        BadForward{"MetaHuge", "X-Meshnet-Meta-Length", "9007199254740992", "bytes of the body"},
        BadForward{"MetaCut", "X-Meshnet-Meta-Length", "5", "JSON object"}),
    [](const auto& parameter) { return parameter.param.name; });

TEST(WireForward, RefusesRepeatedHeaders) {
  for (const char* name : {"X-Meshnet-Session", "X-Meshnet-Past-Len", "X-Meshnet-Shape"}) {
    HttpRequest request = format_forward(full_request(), 1);
    request.insert(name, request[name]);
    EXPECT_THAT(refusal(request), AllOf(HasSubstr(name), HasSubstr("several")));
  }
}

TEST(WireForward, RefusesMetaThatIsNoObject) {
  std::string deep = R"({"a":)" + std::string(100'000, '[');
  for (const std::string& meta : {std::string("[1,2]"),
                                  std::string("7"),
                                  std::string("{\"a\":}"),
                                  std::string("{\"a\":\"\xff\"}"),
                                  deep}) {
    ForwardRequest step = full_request();
    step.meta = meta;
    EXPECT_THAT(refusal(format_forward(step, 1)), HasSubstr("X-Meshnet-Meta-Length")) << meta[0];
  }
}

TEST(WireForward, BodyMustBeAsLongAsTheShapeSays) {
  for (const int difference : {-1, 1, 16}) {
    HttpRequest request = format_forward(full_request(), 1);
    request.body().resize(request.body().size() + static_cast<std::size_t>(difference));
    EXPECT_THAT(refusal(request), AllOf(HasSubstr("body"), HasSubstr("expected 32 bytes")));
  }
}

TEST(WireForward, BodyWithoutShapeMustBeWholeTokens) {
  HttpRequest request(http::verb::post, "/forward", 11);
  EXPECT_THAT(refusal(request), HasSubstr("multiple of 16 bytes (one token), got 0"));
  request.body() = zeros(2) + "x";
  EXPECT_THAT(refusal(request), HasSubstr("multiple of 16 bytes (one token), got 33"));
  request.body() = zeros(101);
  EXPECT_THAT(refusal(request), HasSubstr("at most 100 tokens, got 101"));
}

TEST(WireForward, DecodeOfTwoTokensIsRefused) {
  ForwardRequest step = full_request();
  step.mode = CacheMode::kDecode;
  step.more = false;
  EXPECT_THAT(refusal(format_forward(step, 1)), HasSubstr("one token in a decode, got 2"));
}

}  // namespace
}  // namespace meshnet
