// Bodies as etcd's gateway writes and reads them; the answers are of etcd 3.4.23.
#include "baton/membership/etcd_messages.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace baton::membership::etcd {
namespace {

using message::NodeRole;

TEST(Base64, KnownPairsAndGarbage) {
  const std::pair<const char*, const char*> pairs[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"},
                                                       {"\xFB\xFF", "+/8="}};
  for (const auto& [bytes, text] : pairs) {
    EXPECT_EQ(base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
  EXPECT_EQ(from_base64("Zg"), std::nullopt);
  EXPECT_EQ(from_base64("Zg=?"), std::nullopt);
  EXPECT_EQ(from_base64("Z-=="), std::nullopt);
}

TEST(EtcdMessages, RequestsNameKeysAndNumbersAsTheGatewayWantsThem) {
  const auto grant = nlohmann::json::parse(grant_body(10));
  EXPECT_EQ(grant["TTL"], "10");
  const auto put = nlohmann::json::parse(put_body({"k", "v"}, "7587"));
  EXPECT_EQ(put["key"], base64("k"));
  EXPECT_EQ(put["value"], base64("v"));
  EXPECT_EQ(put["lease"], "7587");
  const auto range = nlohmann::json::parse(range_body("/baton/nodes/"));
  EXPECT_EQ(from_base64(range["key"].get<std::string>()), "/baton/nodes/");
  EXPECT_EQ(from_base64(range["range_end"].get<std::string>()), "/baton/nodes0");
  const auto carried = nlohmann::json::parse(range_body("a\xFF"));
  EXPECT_EQ(from_base64(carried["range_end"].get<std::string>()), "b");
  const auto watch = nlohmann::json::parse(watch_body("/p/", 12))["create_request"];
  EXPECT_EQ(watch["start_revision"], "12");
  EXPECT_EQ(from_base64(watch["range_end"].get<std::string>()), "/p0");
}

TEST(EtcdMessages, Range) {
  const auto page = parse_range(
      R"({"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437",)"
      R"("revision":"3","raft_term":"2"},"kvs":[{"key":"YQ==","create_revision":"2",)"
      R"("mod_revision":"2","version":"1","value":"MQ==","lease":"7587"}],"count":"1"})");
  ASSERT_TRUE(page.has_value()) << page.error().message;
  EXPECT_EQ(page->revision, 3);
  ASSERT_EQ(page->pairs.size(), 1U);
  EXPECT_EQ(page->pairs[0].key, "a");
  EXPECT_EQ(page->pairs[0].value, "1");
  EXPECT_TRUE(parse_range(R"({"header":{"revision":"3"}})")->pairs.empty());
  for (const char* bad : {"", "x", "[]", "{}", R"({"header":{"revision":"x"}})",
                          R"({"header":{"revision":"3"},"kvs":[{"key":"?"}]})",
                          R"({"header":{"revision":"3"},"kvs":[7]})"}) {
    EXPECT_EQ(parse_range(bad).error().code, ErrorCode::kProtocol) << bad;
  }
}

TEST(EtcdMessages, Watch) {
  const auto created =
      parse_watch(R"({"result":{"header":{"revision":"3"},"watch_id":"0","created":true}})");
  ASSERT_TRUE(created.has_value());
  EXPECT_TRUE(created->events.empty());
  EXPECT_FALSE(created->ended);
  const auto two = parse_watch(
      R"({"result":{"header":{"revision":"5"},"events":[{"kv":{"key":"YQ==","value":"MQ=="}},)"
      R"({"type":"DELETE","kv":{"key":"Yg==","mod_revision":"5"}}]}})");
  ASSERT_TRUE(two.has_value());
  ASSERT_EQ(two->events.size(), 2U);
  EXPECT_FALSE(two->events[0].deleted);
  EXPECT_EQ(two->events[0].pair.value, "1");
  EXPECT_TRUE(two->events[1].deleted);
  EXPECT_EQ(two->events[1].pair.key, "b");
  EXPECT_TRUE(parse_watch(R"({"result":{"header":{"revision":"9"},"canceled":true,)"
                          R"("compact_revision":"7"}})")
                  ->ended);
  const auto error = parse_watch(R"({"error":{"grpc_code":14,"http_code":503,)"
                                 R"("message":"etcdserver: no leader","http_status":"x"}})");
  EXPECT_EQ(error.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(error.error().message.find("no leader"), std::string::npos);
  EXPECT_EQ(parse_watch("").error().code, ErrorCode::kProtocol);
  EXPECT_EQ(parse_watch(R"({"result":{"events":[{}]}})").error().code, ErrorCode::kProtocol);
}

TEST(EtcdMessages, Leases) {
  EXPECT_EQ(*parse_grant(R"({"header":{"revision":"3"},"ID":"7587847","TTL":"10"})"), "7587847");
  EXPECT_FALSE(parse_grant(R"({"TTL":"10"})").has_value());
  EXPECT_EQ(*parse_keep_alive(R"({"result":{"header":{},"ID":"7587","TTL":"10"}})"), 10);
  EXPECT_EQ(*parse_keep_alive(R"({"result":{"header":{},"ID":"7587"}})"), 0) << "no such lease";
  EXPECT_EQ(error_text(R"({"error":"etcdserver: requested lease not found","code":5})"),
            "etcdserver: requested lease not found");
  EXPECT_EQ(error_text("404 page not found\n"), "404 page not found\n");
}

TEST(EtcdMessages, Nodes) {
  const Member member{NodeRole::kDecode, {"::1", 7002}};
  const KeyValue pair = node_pair("/baton", "d-1", member);
  EXPECT_EQ(pair.key, "/baton/nodes/d-1");
  EXPECT_EQ(*parse_node(pair), member);
  for (const char* value :
       {"", "{}", R"({"role":"router","address":"a:1"})", R"({"role":"decode","address":"a"})",
        R"({"role":"decode"})", R"({"role":7,"address":"a:1"})"}) {
    const auto parsed = parse_node({"/baton/nodes/x", value});
    ASSERT_FALSE(parsed.has_value()) << value;
    EXPECT_NE(parsed.error().message.find("/baton/nodes/x"), std::string::npos);
  }
}

}  // namespace
}  // namespace baton::membership::etcd
