// Certificates for tests, made on the spot: nothing that expires or is secret lies in the tree.
#pragma once

#include "baton/net/tls.h"

#include <memory>
#include <string>

namespace baton::testing {

// A CA of its own in a temporary folder, which goes with the object. Errors abort the test program.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // A fresh certificate and key of a node called `name`, valid from now + begin_s
  // to now + end_s.
  net::TlsFiles issue(const std::string& name, long begin_s = -60, long end_s = 3600);
  // The same as a context; `ca` is another authority's file for one that trusts others.
  std::shared_ptr<const net::TlsContext> context(net::TlsFiles files,
                                                 net::TlsUse use = net::TlsUse::kNodes);
  std::shared_ptr<const net::TlsContext> node(const std::string& name) {
    return context(issue(name));
  }
  [[nodiscard]] const std::string& ca_file() const { return ca_file_; }
  // A file of that content in the folder.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  struct Pair;
  std::string folder_;
  std::string ca_file_;
  std::unique_ptr<Pair> ca_;
  int issued_ = 0;
};

}  // namespace baton::testing
