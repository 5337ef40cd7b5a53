// TLS contexts, made once at start from PEM files: what node connections (TcpStream::start_tls) and
// the HTTP server share. OpenSSL's own types stay out of this header.
#pragma once

#include "baton/base/result.h"

#include <cstdint>
#include <memory>
#include <string>

struct ssl_ctx_st;

namespace baton::net {

// PEM files. A path that is given must be readable and hold what its name says.
struct TlsFiles {
  std::string cert;  // ours, then the intermediates up to but without the root
  std::string key;   // its private key, not encrypted
  std::string ca;    // who may sign the other side's certificate. Empty: it needs to show none
};
// What the operator calls the three: each error begins with one of them.
struct TlsNames {
  std::string cert;
  std::string key;
  std::string ca;
};

enum class TlsUse : std::uint8_t {
  kNodes,  // both roles, mutual; long connections that carry gigabytes: large buffers, no tickets
  kHttp,   // a server for any client
};
enum class TlsRole : std::uint8_t { kClient, kServer };

// Immutable once made, so any thread may use it. TLS 1.2 and 1.3, AES-128-GCM first: the fastest
// where the CPU has AES, which is everywhere that baton is fast.
class TlsContext {
 public:
  // Reads the files. With a ca every peer must show a certificate that it signed, whether it dials
  // or accepts, and names are not looked at: the CA is what makes a node. A certificate of ours
  // that is not valid now is only warned about: the clock may be wrong, and peers judge for
  // themselves. Errors: kInvalidArgument, beginning with the name of what is wrong.
  static Result<std::shared_ptr<const TlsContext>> load(const TlsFiles& files,
                                                        const TlsNames& names, TlsUse use);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Borrowed. OpenSSL counts references in it, which is its only change.
  [[nodiscard]] ssl_ctx_st* native() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

}  // namespace baton::net
