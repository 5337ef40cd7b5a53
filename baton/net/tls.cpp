#include "baton/net/tls.h"

#include "baton/base/log.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace baton::net {

namespace {

constexpr const char* kCiphers13 =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr const char* kCiphers12 =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"
    "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
    "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
// Records that one read call may take: 8 full ones, half of what a bulk connection reads at a time.
constexpr std::size_t kNodeReadBytes = std::size_t{128} << 10;

// The newest reason in OpenSSL's queue, and its number; empties the queue.
std::string reason(int* number = nullptr) {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (number != nullptr) {
    *number = ERR_GET_REASON(code);
  }
  const char* text = ERR_reason_error_string(code);
  return text != nullptr ? text : "unknown reason";
}

tl::unexpected<Error> bad(const std::string& name, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, name + ": " + what, name);
}

Status readable(const std::string& path, const std::string& name) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return bad(name, fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  const bool empty = std::fgetc(file) == EOF;  // a folder, too
  const bool broken = std::ferror(file) != 0;
  std::fclose(file);
  if (broken || empty) {
    return bad(name,
               fmt::format("cannot read {}: {}", path, broken ? "not a file" : "it is empty"));
  }
  return {};
}

int no_passphrase(char*, int, int, void*) { return 0; }  // else OpenSSL asks on the terminal

Status use_certificate(SSL_CTX* context, const TlsFiles& files, const TlsNames& names) {
  BATON_TRY_VOID(readable(files.cert, names.cert));
  BATON_TRY_VOID(readable(files.key, names.key));
  SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  if (SSL_CTX_use_certificate_chain_file(context, files.cert.c_str()) != 1) {
    return bad(names.cert,
               fmt::format("{} is not a certificate in PEM ({})", files.cert, reason()));
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(context) == 1) {
    return {};
  }
  int number = 0;
  const std::string why = reason(&number);
  if (number == X509_R_KEY_VALUES_MISMATCH || number == X509_R_KEY_TYPE_MISMATCH) {
    return bad(names.key, fmt::format("{} is not the key of the certificate in {} ({})", files.key,
                                      files.cert, names.cert));
  }
  return bad(names.key, fmt::format("{} is not a private key in PEM, or it is encrypted ({})",
                                    files.key, why));
}

Status use_authority(SSL_CTX* context, const std::string& path, const std::string& name) {
  BATON_TRY_VOID(readable(path, name));
  if (SSL_CTX_load_verify_locations(context, path.c_str(), nullptr) != 1) {
    return bad(name, fmt::format("{} has no CA certificate in PEM ({})", path, reason()));
  }
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(path.c_str()));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

void warn_of_its_time(SSL_CTX* context, const TlsFiles& files, const TlsNames& names) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    log::warn("{}: the certificate in {} has expired: peers will refuse it", names.cert,
              files.cert);
  } else if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    log::warn("{}: the certificate in {} is not valid yet: peers will refuse it", names.cert,
              files.cert);
  }
}

}  // namespace

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Result<std::shared_ptr<const TlsContext>> TlsContext::load(const TlsFiles& files,
                                                           const TlsNames& names, TlsUse use) {
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  if (context == nullptr) {
    return fail(ErrorCode::kInternal, "OpenSSL has no TLS: " + reason());
  }
  std::shared_ptr<const TlsContext> made(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  if (SSL_CTX_set_ciphersuites(context, kCiphers13) != 1 ||
      SSL_CTX_set_cipher_list(context, kCiphers12) != 1) {
    return fail(ErrorCode::kInternal, "OpenSSL has none of our ciphers: " + reason());
  }
  // Sessions of clients with certificates are tied to a context; without a name they fail.
  static constexpr unsigned char kSessionName[] = "baton";
  SSL_CTX_set_session_id_context(context, kSessionName, sizeof(kSessionName) - 1);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (use == TlsUse::kNodes) {
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_num_tickets(context, 0);  // an acceptor of bulk writes nothing after the handshake
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, kNodeReadBytes);
  }
  BATON_TRY_VOID(use_certificate(context, files, names));
  if (!files.ca.empty()) {
    BATON_TRY_VOID(use_authority(context, files.ca, names.ca));
  }
  warn_of_its_time(context, files, names);
  return made;
}

}  // namespace baton::net
