#include "tests/support/certificates.h"

#include "baton/base/check.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace baton::testing {

namespace {

const net::TlsNames kNames{"--cert", "--key", "--ca"};

void add_extension(X509* certificate, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  BATON_CHECK(extension != nullptr);
  BATON_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

template <class Write>
void write_pem(const std::string& path, Write write) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  BATON_CHECK(file != nullptr);
  BATON_CHECK(write(file) == 1);
  BATON_CHECK(std::fclose(file) == 0);
}

}  // namespace

struct TestAuthority::Pair {
  Pair() : key(EVP_EC_gen("P-256")), certificate(X509_new()) {
    BATON_CHECK(key != nullptr && certificate != nullptr);
  }
  ~Pair() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Fills the certificate in and has `issuer` (itself, for a CA) sign it.
  void sign(const std::string& name, const Pair& issuer, int serial, long begin_s,
            long end_s) const {
    const bool is_ca = &issuer == this;
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), begin_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), end_s);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer.certificate));
    X509_set_pubkey(certificate, key);
    add_extension(certificate, NID_basic_constraints,
                  is_ca ? "critical,CA:TRUE" : "critical,CA:FALSE");
    if (!is_ca) {
      add_extension(certificate, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    }
    BATON_CHECK(X509_sign(certificate, issuer.key, EVP_sha256()) > 0);
  }

  EVP_PKEY* key;
  X509* certificate;
};

TestAuthority::TestAuthority() : ca_(std::make_unique<Pair>()) {
  std::string folder = (std::filesystem::temp_directory_path() / "baton-ca-XXXXXX").string();
  BATON_CHECK(::mkdtemp(folder.data()) != nullptr);
  folder_ = folder;
  ca_file_ = folder_ + "/ca.pem";
  ca_->sign("test CA", *ca_, 1, -3600, 24L * 3600);
  write_pem(ca_file_, [&](std::FILE* file) { return PEM_write_X509(file, ca_->certificate); });
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

net::TlsFiles TestAuthority::issue(const std::string& name, long begin_s, long end_s) {
  const Pair pair;
  pair.sign(name, *ca_, 2 + issued_, begin_s, end_s);
  const std::string stem = folder_ + "/" + std::to_string(issued_++);
  const net::TlsFiles files{stem + ".pem", stem + ".key", ca_file_};
  write_pem(files.cert, [&](std::FILE* file) { return PEM_write_X509(file, pair.certificate); });
  write_pem(files.key, [&](std::FILE* file) {
    return PEM_write_PrivateKey(file, pair.key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  return files;
}

std::shared_ptr<const net::TlsContext> TestAuthority::context(net::TlsFiles files,
                                                              net::TlsUse use) {
  auto made = net::TlsContext::load(files, kNames, use);
  BATON_CHECK(made.has_value());
  return *std::move(made);
}

std::string TestAuthority::write(const std::string& name, const std::string& content) const {
  const std::string path = folder_ + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace baton::testing
