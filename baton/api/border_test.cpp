// What every request meets at the border: error bodies, the key check, JSON text, small pages.
#include "baton/api/auth.h"
#include "baton/api/error_body.h"
#include "baton/api/json_writer.h"
#include "baton/api/pages.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace baton::api {
namespace {

using Json = nlohmann::json;

TEST(ErrorBody, OpenAiShape) {
  const Json body =
      Json::parse(error_body({ErrorCode::kInvalidArgument, "n \"must\"\nbe\x01 1", "n", 0}));
  EXPECT_EQ(body["error"]["message"], "n \"must\"\nbe\x01 1");
  EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  EXPECT_EQ(body["error"]["param"], "n");
  EXPECT_TRUE(body["error"]["code"].is_null());
  const Json model = Json::parse(error_body({ErrorCode::kModelNotFound, "x", "model", 0}));
  EXPECT_EQ(model["error"]["code"], "model_not_found");
}

TEST(ErrorBody, StatusOfEveryCode) {
  const std::map<ErrorCode, int> expected{{ErrorCode::kInvalidArgument, 400},
                                          {ErrorCode::kContextTooLong, 400},
                                          {ErrorCode::kModelNotFound, 404},
                                          {ErrorCode::kNotFound, 404},
                                          {ErrorCode::kUnauthorized, 401},
                                          {ErrorCode::kPayloadTooLarge, 413},
                                          {ErrorCode::kMethodNotAllowed, 405},
                                          {ErrorCode::kOverloaded, 429},
                                          {ErrorCode::kUnavailable, 503},
                                          {ErrorCode::kUnsupported, 400},
                                          {ErrorCode::kCancelled, 503},
                                          {ErrorCode::kDeadlineExceeded, 504},
                                          {ErrorCode::kPeerLost, 503},
                                          {ErrorCode::kCorruptFrame, 502},
                                          {ErrorCode::kProtocol, 502},
                                          {ErrorCode::kHandshakeMismatch, 503},
                                          {ErrorCode::kIo, 500},
                                          {ErrorCode::kInternal, 500}};
  for (const auto& [code, status] : expected) {
    EXPECT_EQ(error_kind(code).status, status) << error_code_name(code);
    EXPECT_FALSE(error_kind(code).type.empty());
  }
}

TEST(ErrorBody, RetryAfterInWholeSeconds) {
  const auto retry_after = [](ErrorCode code, std::int64_t hint_ms) {
    for (const auto& [name, value] : error_response({code, "x", {}, hint_ms}).headers) {
      if (name == "Retry-After") {
        return value;
      }
    }
    return std::string();
  };
  EXPECT_EQ(retry_after(ErrorCode::kOverloaded, 0), "1");
  EXPECT_EQ(retry_after(ErrorCode::kOverloaded, 1500), "2");
  EXPECT_EQ(retry_after(ErrorCode::kUnavailable, 1000), "1");
  EXPECT_EQ(retry_after(ErrorCode::kInvalidArgument, 1000), "");
}

TEST(ErrorBody, PeersTextsStayInside) {
  for (const ErrorCode code : {ErrorCode::kPeerLost, ErrorCode::kProtocol, ErrorCode::kInternal}) {
    EXPECT_EQ(error_body({code, "10.0.0.7:7001 reset", {}, 0}).find("10.0.0.7"), std::string::npos);
  }
}

TEST(ErrorBody, EventOfABrokenStream) {
  const std::string event = error_event({ErrorCode::kUnavailable, "gone", {}, 0});
  EXPECT_EQ(event.find("event: error\ndata: {\"error\":"), 0U) << event;
  EXPECT_EQ(event.substr(event.size() - 2), "\n\n");
  EXPECT_EQ(event.find("[DONE]"), std::string::npos);
}

http::HttpRequest request(const std::string& path, const std::string& authorization) {
  http::HttpRequest out;
  out.method = "GET";
  out.path = path;
  if (!authorization.empty()) {
    out.headers.emplace_back("authorization", authorization);
  }
  return out;
}

TEST(KeyCheck, B39GuardsEverything) {
  const KeyCheck check({"secret-key", "other"});
  for (const char* path :
       {"/v1/models", "/v1/chat/completions", "/metrics", "/cluster", "", "//", "/.", "/index.html",
        "/nothing", "/health/", "//health", "/Health", "/HEALTH", "/./health", "/v1/../health",
        "/health%20", "/ready/x", "*"}) {
    EXPECT_EQ(check.check(request(path, "")).error().code, ErrorCode::kUnauthorized) << path;
    for (const char* wrong :
         {"Bearer secret-kez", "Bearer secret-ke", "Bearer secret-keyy", "Bearer ", "Bearer",
          "Bearersecret-key", "Basic secret-key", "secret-key", "Bearer secret-key,other",
          "Bearer SECRET-KEY", "Bearer secret-key ", "Bearer \tsecret-key"}) {
      EXPECT_FALSE(check.check(request(path, wrong)).has_value()) << path << " " << wrong;
    }
    for (const char* right :
         {"Bearer secret-key", "bearer secret-key", "BEARER  secret-key", "Bearer other"}) {
      EXPECT_TRUE(check.check(request(path, right)).has_value()) << path << " " << right;
    }
  }
  for (const char* path : {"/health", "/ready", "/live", "/"}) {
    EXPECT_TRUE(check.check(request(path, "")).has_value());
  }
  for (const char* path : {"/health", "/ready", "/live", "/"}) {
    http::HttpRequest write = request(path, "");
    for (const char* method : {"POST", "PUT", "DELETE", "get", ""}) {  // they may have a body
      write.method = method;
      EXPECT_FALSE(check.check(write).has_value()) << method << " " << path;
    }
  }
  http::HttpRequest twice = request("/v1/models", "Bearer secret-key");
  twice.headers.emplace_back("authorization", "Bearer wrong");
  EXPECT_FALSE(check.check(twice).has_value()) << "which of them counts is a matter of opinion";
  EXPECT_TRUE(KeyCheck({}).check(request("/v1/models", "")).has_value());
  EXPECT_FALSE(KeyCheck({}).enabled());
}

TEST(JsonWriter, Numbers) {
  const auto real = [](float value) {
    std::string out;
    JsonWriter(out).real(value);
    return out;
  };
  EXPECT_EQ(real(-0.1F), "-0.1");
  EXPECT_EQ(real(1.0F), "1");
  EXPECT_EQ(real(std::numeric_limits<float>::quiet_NaN()), "null");
  EXPECT_EQ(real(std::numeric_limits<float>::infinity()), "null");
  for (const float value : {1e-40F, 3.4028235e38F, -0.30000001F, 1.17549435e-38F, 16777217.0F}) {
    EXPECT_EQ(std::strtof(real(value).c_str(), nullptr), value);
  }
  std::string out;
  JsonWriter(out)
      .begin_array()
      .integer(std::numeric_limits<std::int64_t>::min())
      .unsigned_integer(std::numeric_limits<std::uint64_t>::max())
      .end_array();
  EXPECT_EQ(out, "[-9223372036854775808,18446744073709551615]");
}

TEST(JsonWriter, StringsAndNesting) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("a\"").begin_array().string("\\\n\t\x1f\u00e9\xf0\x9f\x98\x80").null();
  json.boolean(true).begin_object().end_object().begin_array().end_array().end_array();
  json.key("b").string("\xff\xc3").end_object();
  const Json read = Json::parse(out);
  EXPECT_EQ(read["a\""][0], "\\\n\t\x1f\u00e9\xf0\x9f\x98\x80");
  EXPECT_EQ(read["a\""].size(), 5U);
  EXPECT_EQ(read["b"], "\ufffd\ufffd");
}

TEST(Pages, ModelsHealthReady) {
  const Json models = Json::parse(models_body({{"smol", 5, 8192}}));
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "smol");
  EXPECT_EQ(models["data"][0]["max_model_len"], 8192);
  EXPECT_EQ(health_response().status, 200);
  EXPECT_EQ(ready_response(true, {}).status, 200);
  const auto not_ready = ready_response(false, {"prefill node h:1: refused"});
  EXPECT_EQ(not_ready.status, 503);
  EXPECT_EQ(Json::parse(not_ready.body)["missing"][0], "prefill node h:1: refused");
}

}  // namespace
}  // namespace baton::api
