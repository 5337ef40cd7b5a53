// What keeps strangers out of a cluster: the token's proofs, and nodes with a token or with TLS
// against peers that have none, another, half of one, or somebody else's.
#include "baton/handoff/cluster_token.h"
#include "baton/handoff/tcp_test_util.h"
#include "baton/wire/limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/certificates.h"
#include <set>

namespace baton::handoff {
namespace {

using message::NodeRole;
using std::chrono::milliseconds;
using test::beat;
using test::key_of;
using test::pattern;
using test::RawPeer;
using test::TestNode;
using testing::TestAuthority;

constexpr const char* kSecret = "correct horse battery staple";

std::shared_ptr<const ClusterToken> token(const char* text = kSecret) {
  return std::make_shared<const ClusterToken>(*ClusterToken::parse(text));
}

wire::pb::Hello with_nonce(wire::pb::Hello hello) {
  hello.set_nonce(make_nonce());
  return hello;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

// ---- the token --------------------------------------------------------------------------------

TEST(ClusterToken, BoundsAndWhiteSpace) {
  EXPECT_FALSE(ClusterToken::parse("").has_value());
  EXPECT_FALSE(ClusterToken::parse("   \n").has_value());
  EXPECT_FALSE(ClusterToken::parse("fifteen letters").has_value());
  EXPECT_FALSE(ClusterToken::parse(std::string(kMaxTokenBytes + 1, 'x')).has_value());
  EXPECT_TRUE(ClusterToken::parse(std::string(kMaxTokenBytes, 'x')).has_value());
  const auto refused = ClusterToken::parse("shortsecret");
  EXPECT_EQ(refused.error().message.find("shortsecret"), std::string::npos);
  // A file ends with a line break, a variable does not.
  const auto d = with_nonce(test::hello("d", NodeRole::kDecode));
  const auto a = with_nonce(test::hello("a", NodeRole::kPrefill));
  const std::string line = std::string(" ") + kSecret + "\r\n";
  EXPECT_EQ(make_proof(*ClusterToken::parse(line), End::kDialler, d, a),
            make_proof(*token(), End::kDialler, d, a));
}

// Made by an independent implementation of docs/protocol.md (Python's hmac and struct).
TEST(ClusterToken, GoldenProof) {
  wire::pb::Hello dialler;
  dialler.set_node_id("p1");
  dialler.set_role(1);
  dialler.set_boot_high(0x0102030405060708);
  dialler.set_boot_low(0x1112131415161718);
  dialler.set_serving_port(7001);
  dialler.set_bulk(true);
  dialler.set_nonce(std::string(wire::kNonceBytes, 'd'));
  wire::pb::Hello acceptor;
  acceptor.set_node_id("decode-1");
  acceptor.set_role(2);
  acceptor.set_boot_low(9);
  acceptor.set_serving_port(7002);
  acceptor.set_nonce(std::string(wire::kNonceBytes, 'a'));
  EXPECT_EQ(hex(make_proof(*token(), End::kDialler, dialler, acceptor)),
            "4b53a1ae28d7efbb5367f938dab511c5e49d3b24e8966dafbc09a757c8160e5c");
  EXPECT_EQ(hex(make_proof(*token(), End::kAcceptor, dialler, acceptor)),
            "26e19f3b66ced0eb11471c258715b0d87bb6b8cccb6f33b8d6e861d4a60bc039");
}

// openssl dgst -sha256 -hmac "$token", of "baton secret for cache namespaces".
TEST(ClusterToken, DerivedSecrets) {
  const std::string derived = token()->derive("cache namespaces");
  EXPECT_EQ(hex(derived), "bb371b4bebe988b3392f65893b29e5291209e13a45aab1795fb3f36ead71386e");
  EXPECT_NE(token()->derive("something else"), derived);
  EXPECT_NE(token("another horse battery staple")->derive("cache namespaces"), derived);
}

TEST(ClusterToken, NoncesDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string nonce = make_nonce();
    EXPECT_EQ(nonce.size(), wire::kNonceBytes);
    EXPECT_TRUE(seen.insert(nonce).second);
  }
}

TEST(ClusterToken, AProofFitsOneTokenOneConnectionOneDirectionOnePair) {
  const auto d = with_nonce(test::hello("d", NodeRole::kDecode));
  const auto a = with_nonce(test::hello("a", NodeRole::kPrefill));
  const std::string proof = make_proof(*token(), End::kDialler, d, a);
  EXPECT_TRUE(is_proof(*token(), End::kDialler, d, a, proof));
  EXPECT_FALSE(is_proof(*token("another horse battery staple"), End::kDialler, d, a, proof));
  EXPECT_FALSE(is_proof(*token(), End::kAcceptor, d, a, proof));  // reflected
  EXPECT_FALSE(is_proof(*token(), End::kDialler, a, d, proof));
  EXPECT_FALSE(is_proof(*token(), End::kDialler, with_nonce(d), a, proof));  // replayed
  EXPECT_FALSE(is_proof(*token(), End::kDialler, d, with_nonce(a), proof));
  EXPECT_FALSE(is_proof(*token(), End::kDialler, d, a, ""));
  EXPECT_FALSE(is_proof(*token(), End::kDialler, d, a, proof.substr(0, 31)));
  EXPECT_FALSE(is_proof(*token(), End::kDialler, d, a, proof + "x"));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    std::string flipped = proof;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    EXPECT_FALSE(is_proof(*token(), End::kDialler, d, a, flipped));
  }
  const std::vector<std::function<void(wire::pb::Hello&)>> lies{
      [](auto& hello) { hello.set_node_id("other"); }, [](auto& hello) { hello.set_role(3); },
      [](auto& hello) { hello.set_boot_high(hello.boot_high() + 1); },
      [](auto& hello) { hello.set_boot_low(hello.boot_low() + 1); },
      [](auto& hello) { hello.set_serving_port(hello.serving_port() + 1); }};
  for (const auto& lie : lies) {
    auto liar = d;
    lie(liar);
    EXPECT_FALSE(is_proof(*token(), End::kDialler, liar, a, proof));
    liar = a;
    lie(liar);
    EXPECT_FALSE(is_proof(*token(), End::kDialler, d, liar, proof));
  }
  auto bulk = d;
  bulk.set_bulk(true);
  EXPECT_FALSE(is_proof(*token(), End::kDialler, bulk, a, proof));
}

TEST(ClusterToken, OneSideWithoutIsAMismatch) {
  const auto plain = test::hello("d", NodeRole::kDecode);
  EXPECT_FALSE(find_token_mismatch(nullptr, plain).has_value());
  EXPECT_FALSE(find_token_mismatch(token().get(), with_nonce(plain)).has_value());
  EXPECT_EQ(find_token_mismatch(token().get(), plain)->theirs, "none");
  EXPECT_EQ(find_token_mismatch(nullptr, with_nonce(plain))->ours, "none");
}

// ---- nodes with a token -----------------------------------------------------------------------

class Guarded : public test::TcpFixture {
 protected:
  void make_guarded_d() {
    options_.token = token();
    make_d();
  }
  // Hello and the acceptor's reply on a fresh connection, which is left open.
  wire::pb::HelloReply offer(RawPeer* peer, const wire::pb::Hello& hello) {
    peer->send(*wire::encode_hello(hello));
    const auto [header, payload] = peer->receive();
    return *wire::decode_hello_reply(header, payload);
  }
  void expect_refused(RawPeer* peer, const std::string& ours, const std::string& theirs) {
    const auto [header, payload] = peer->receive();
    const auto reply = wire::decode_hello_reply(header, payload);
    ASSERT_TRUE(reply.has_value());
    EXPECT_FALSE(reply->accepted());
    EXPECT_EQ(reply->field(), kTokenField);
    EXPECT_EQ(reply->ours(), ours);
    EXPECT_EQ(reply->theirs(), theirs);
    EXPECT_FALSE(reply->has_hello());  // a stranger does not learn who we are
    EXPECT_TRUE(peer->sees_close());
  }
  void expect_nobody_came() {
    EXPECT_EQ(d_->count<PeerUp>(), 0U);
    EXPECT_EQ(d_->count<PeerUnusable>(), 0U);
    EXPECT_EQ(d_->count<ControlReceived>(), 0U);
  }
};

TEST_F(Guarded, AGoodProofIsLetIn) {
  make_guarded_d();
  RawPeer peer(address_);
  const auto hello = with_nonce(raw_hello_);
  const auto reply = offer(&peer, hello);
  ASSERT_TRUE(reply.accepted());
  EXPECT_TRUE(is_proof(*token(), End::kAcceptor, hello, reply.hello(), reply.proof()));
  EXPECT_EQ(d_->count<PeerUp>(), 0U);  // not before ours
  peer.send(*wire::encode_hello_reply(
      accepting(make_proof(*token(), End::kDialler, hello, reply.hello()))));
  EXPECT_EQ(d_->take<PeerUp>().info.id.value, "raw");
  peer.send(*wire::encode_control(key_of(1), beat(1)));
  d_->take<ControlReceived>();
}

TEST_F(Guarded, NoToken) {
  make_guarded_d();
  RawPeer peer(address_);
  peer.send(*wire::encode_hello(raw_hello_));
  expect_refused(&peer, "set", "none");
  expect_nobody_came();
}

TEST_F(Guarded, ATokenWhereNoneIsAskedFor) {
  make_d();
  RawPeer peer(address_);
  peer.send(*wire::encode_hello(with_nonce(raw_hello_)));
  expect_refused(&peer, "none", "set");
  expect_nobody_came();
}

TEST_F(Guarded, AnotherToken) {
  make_guarded_d();
  RawPeer peer(address_);
  const auto hello = with_nonce(raw_hello_);
  const auto reply = offer(&peer, hello);
  const auto other = token("another horse battery staple");
  EXPECT_FALSE(is_proof(*other, End::kAcceptor, hello, reply.hello(), reply.proof()));
  peer.send(*wire::encode_hello_reply(
      accepting(make_proof(*other, End::kDialler, hello, reply.hello()))));
  expect_refused(&peer, "one secret", "another");
  expect_nobody_came();
}

TEST_F(Guarded, NoProofAReflectedOneAndOneOfAnotherConnection) {
  make_guarded_d();
  const auto hello = with_nonce(raw_hello_);
  std::string replayed;
  {
    RawPeer good(address_);
    const auto reply = offer(&good, hello);
    replayed = make_proof(*token(), End::kDialler, hello, reply.hello());
    good.send(*wire::encode_hello_reply(accepting(replayed)));
    d_->take<PeerUp>();
    good.reset();
    d_->take<PeerDown>();
  }
  for (const std::string kind : {"none", "reflected", "replayed"}) {
    RawPeer peer(address_);
    const auto reply = offer(&peer, hello);  // also the old nonce again
    ASSERT_TRUE(reply.accepted());
    const std::string proof = kind == "reflected"  ? reply.proof()
                              : kind == "replayed" ? replayed
                                                   : "";
    peer.send(*wire::encode_hello_reply(accepting(proof)));
    expect_refused(&peer, "one secret", "another");
  }
  expect_nobody_came();
}

TEST_F(Guarded, NothingElseIsAcceptedBeforeTheProof) {
  make_guarded_d();
  const auto hello = with_nonce(raw_hello_);
  const auto hello_bytes = *wire::encode_hello(hello);
  {  // another frame first
    RawPeer peer(address_);
    peer.send(*wire::encode_control(key_of(1), beat(1)));
    EXPECT_TRUE(peer.sees_close());
  }
  {  // in place of the proof
    RawPeer peer(address_);
    EXPECT_TRUE(offer(&peer, hello).accepted());
    peer.send(*wire::encode_control(key_of(1), beat(1)));
    EXPECT_TRUE(peer.sees_close());
  }
  {  // larger than any Hello: refused by its header
    RawPeer peer(address_);
    peer.send(
        wire::encode_header({1, wire::FrameType::kHello, 0, {}, 0, wire::kMaxHelloBytes + 1, 0}));
    EXPECT_TRUE(peer.sees_close());
  }
  for (std::size_t bytes = 0; bytes < hello_bytes.size(); bytes += 13) {  // cut anywhere
    RawPeer peer(address_);
    peer.send(std::span(hello_bytes).first(bytes));
    peer.reset();
  }
  {  // silent after the first step: the deadline ends it
    RawPeer peer(address_);
    EXPECT_TRUE(offer(&peer, hello).accepted());
    EXPECT_TRUE(peer.sees_close());
  }
  expect_nobody_came();
}

// Strangers that hold every handshake they can get do not keep a node of ours out for longer than
// the deadline of one.
TEST_F(Guarded, StrangersThatSayNothing) {
  make_guarded_d();
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(address_));
  }
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  EXPECT_EQ(d_->take<PeerUp>().info.id.value, "p1");
}

TEST_F(Guarded, ADiallerRefusesAnAcceptorWithoutTheToken) {
  asio::io_context context;
  tcp::acceptor acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  options_.token = token();
  auto p = node(test::hello("p1", NodeRole::kPrefill), {net::local_address(acceptor)});
  auto ours = test::hello("raw", NodeRole::kDecode);
  std::string first_proof;
  wire::pb::Hello first_hello;
  for (const std::string kind : {"no nonce", "no proof", "reflected", "replayed"}) {
    RawPeer peer(&acceptor);
    const auto [header, payload] = peer.receive();
    const auto theirs = *wire::decode_hello(header, payload);
    EXPECT_EQ(theirs.nonce().size(), wire::kNonceBytes);
    wire::pb::HelloReply reply = accepting();
    *reply.mutable_hello() = kind == "no nonce" ? ours : with_nonce(ours);
    if (kind == "reflected") {  // what a dialler with the token would have said
      reply.set_proof(make_proof(*token(), End::kDialler, theirs, reply.hello()));
    } else if (kind == "replayed") {  // heard between p1 and a true node, under another nonce
      *reply.mutable_hello() = first_hello;
      reply.set_proof(first_proof);
    } else if (kind == "no proof") {
      first_hello = reply.hello();
      first_proof = make_proof(*token(), End::kAcceptor, theirs, first_hello);
    }
    peer.send(*wire::encode_hello_reply(reply));
    const auto [reply_header, reply_payload] = peer.receive();
    const auto said = *wire::decode_hello_reply(reply_header, reply_payload);
    EXPECT_FALSE(said.accepted()) << kind;
    EXPECT_EQ(said.field(), kTokenField) << kind;
    EXPECT_TRUE(said.proof().empty()) << kind;
    EXPECT_TRUE(peer.sees_close());
  }
  const auto refusal = p->take<PeerUnusable>();
  EXPECT_EQ(refusal.error.param, kTokenField);
  EXPECT_NE(refusal.error.message.find("--cluster-token-file"), std::string::npos);
  EXPECT_EQ(p->count<PeerUp>(), 0U);
  RawPeer good(&acceptor);  // it went on trying
  const auto [header, payload] = good.receive();
  const auto theirs = *wire::decode_hello(header, payload);
  wire::pb::HelloReply reply = accepting();
  *reply.mutable_hello() = with_nonce(ours);
  reply.set_proof(make_proof(*token(), End::kAcceptor, theirs, reply.hello()));
  good.send(*wire::encode_hello_reply(reply));
  const auto [last_header, last_payload] = good.receive();
  const auto said = *wire::decode_hello_reply(last_header, last_payload);
  EXPECT_TRUE(is_proof(*token(), End::kDialler, theirs, reply.hello(), said.proof()));
  p->take<PeerUp>();
}

TEST_F(Guarded, NodesWithUnlikeTokensBothSayWhy) {
  make_guarded_d();
  options_.token = token("another horse battery staple");
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  const auto refusal = p->take<PeerUnusable>();
  EXPECT_EQ(refusal.address, net::to_string(address_));
  EXPECT_EQ(refusal.error.param, kTokenField);
  options_.token = nullptr;
  auto q = node(test::hello("q1", NodeRole::kPrefill), {address_});
  const auto none = q->take<PeerUnusable>();
  EXPECT_NE(none.error.message.find("asks for a cluster token and we have none"), std::string::npos)
      << none.error.message;
  expect_nobody_came();
}

// ---- nodes with TLS ---------------------------------------------------------------------------

class Tls : public Guarded {
 protected:
  void make_tls_d() {
    options_.tls = ca_.node("d1");
    make_d();
  }
  // Why p1, with that context, cannot use d1.
  std::string refusal_of(std::shared_ptr<const net::TlsContext> tls) {
    options_.tls = std::move(tls);
    auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
    const auto refusal = p->take<PeerUnusable>();
    EXPECT_EQ(refusal.address, net::to_string(address_));
    EXPECT_EQ(p->count<PeerUp>(), 0U);
    EXPECT_EQ(d_->count<PeerUp>(), 0U);
    return refusal.error.message;
  }
  static void expect_words(const std::string& message, std::initializer_list<const char*> words) {
    for (const char* word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << message;
    }
  }

  TestAuthority ca_;
};

TEST_F(Tls, PeersThatDoNotFitAreToldWhyAndOthersComeIn) {
  make_tls_d();
  TestAuthority other;
  expect_words(refusal_of(nullptr), {"speaks TLS and this node does not", "--node-tls-cert"});
  expect_words(refusal_of(other.node("p1")), {"its certificate is not accepted", "--node-tls-ca"});
  net::TlsFiles foreign = other.issue("p1");
  foreign.ca = ca_.ca_file();
  expect_words(refusal_of(other.context(foreign)), {"refused us", "--node-tls-ca"});
  expect_words(refusal_of(ca_.context(ca_.issue("p1", -7200, -3600))), {"refused us", "expired"});
  options_.tls = ca_.node("p2");
  auto p = node(test::hello("p2", NodeRole::kPrefill), {address_});
  EXPECT_EQ(d_->take<PeerUp>().info.id.value, "p2");
}

TEST_F(Tls, ATlsNodeThatDialsAPlainOne) {
  make_d();
  expect_words(refusal_of(ca_.node("p1")), {"does it speak TLS?", "--node-tls-cert"});
}

TEST_F(Tls, AServerWhoseCertificateHasExpired) {
  options_.tls = ca_.context(ca_.issue("d1", -7200, -3600));
  make_d();
  expect_words(refusal_of(ca_.node("p1")), {"certificate has expired"});
}

TEST_F(Tls, StrangersThatSayNothingMeetTheDeadline) {
  make_tls_d();
  RawPeer silent(address_);
  EXPECT_TRUE(silent.sees_close());
  RawPeer half(address_);
  const std::vector<std::byte> begin{std::byte{22}, std::byte{3}, std::byte{1}, std::byte{2}};
  half.send(begin);
  EXPECT_TRUE(half.sees_close());
  RawPeer noise(address_);
  noise.send(pattern(5000, 4));
  EXPECT_TRUE(noise.sees_close());
  expect_nobody_came();
}

TEST_F(Tls, SixtyFourMebibytesBothWays) {
  make_tls_d();
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  p->take<PeerUp>();
  d_->take<PeerUp>();
  constexpr std::size_t kFrame = 16 << 20;
  const auto data = pattern(kFrame, 9);
  std::vector<std::future<Result<BulkSent>>> sends;
  for (std::uint64_t i = 0; i < 4; ++i) {
    TestNode* from = i % 2 == 0 ? p.get() : d_.get();
    TestNode* to = i % 2 == 0 ? d_.get() : p.get();
    to->sink.expect(key_of(i), kFrame, 1 << 20);
    sends.push_back(std::async(std::launch::async, [&data, from, i] {
      return from->blocks(i % 2 == 0 ? "d1" : "p1", key_of(i), 0, data, 4099 + (1 << 20) * (i / 2));
    }));
  }
  for (auto& send : sends) {
    ASSERT_TRUE(send.get().has_value());
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    TestNode* to = i % 2 == 0 ? d_.get() : p.get();
    ASSERT_TRUE(to->take<BlocksReceived>().status.has_value());
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE((i % 2 == 0 ? d_ : p)->sink.bytes(key_of(i)) == data);
  }
}

TEST_F(Tls, ADeadPeersBulkConnectionIsNoticed) {
  make_tls_d();
  auto p = node(test::hello("p1", NodeRole::kPrefill), {address_});
  p->take<PeerUp>();
  const auto data = pattern(100'000, 1);
  d_->sink.expect(key_of(1), data.size());
  ASSERT_TRUE(p->blocks("d1", key_of(1), 0, data).has_value());
  EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
  d_->stop();
  d_.reset();
  p->take<PeerDown>();
  d_ = node(test::hello("d1", NodeRole::kDecode), {}, address_.port);
  p->take<PeerUp>();
  d_->sink.expect(key_of(2), data.size());
  ASSERT_TRUE(p->blocks("d1", key_of(2), 0, data).has_value());
  EXPECT_TRUE(d_->take<BlocksReceived>().status.has_value());
}

// ---- addresses --------------------------------------------------------------------------------

TEST_F(Tls, BeyondLoopbackOnlyWithAGuard) {
  const auto start_on = [&](std::shared_ptr<const net::TlsContext> tls,
                            std::shared_ptr<const ClusterToken> secret) {
    TcpTransportOptions options = options_;
    options.hello = test::hello("x", NodeRole::kDecode);
    options.serving_bind = net::HostPort{"0.0.0.0", 0};
    options.tls = std::move(tls);
    options.token = std::move(secret);
    auto transport = std::make_unique<TcpTransport>(loop_.executor(), &io_, options);
    auto* raw = transport.get();
    TestNode made(&loop_, std::move(transport));
    return made.on_loop([&] { return raw->start(); });
  };
  const Status open = start_on(nullptr, nullptr);
  ASSERT_FALSE(open.has_value());
  EXPECT_EQ(open.error().code, ErrorCode::kInvalidArgument);
  expect_words(open.error().message,
               {"0.0.0.0", "--node-tls-cert", "--node-tls-ca", "--cluster-token-file", "loopback"});
  EXPECT_TRUE(start_on(ca_.node("x"), nullptr).has_value());
  EXPECT_TRUE(start_on(nullptr, token()).has_value());
}

}  // namespace
}  // namespace baton::handoff
