#include "apps/baton/guard.h"

#include "baton/base/log.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace baton::app {
namespace {

struct Given {
  std::string flag;
  std::string value;
};

// All of them, or none. True: all.
bool all_or_none(const std::vector<Given>& flags) {
  std::string given;
  std::string missing;
  for (const Given& one : flags) {
    std::string& list = one.value.empty() ? missing : given;
    list += (list.empty() ? "" : ", ") + one.flag;
  }
  if (!given.empty() && !missing.empty()) {
    throw StartupError(fmt::format("{} without {}: give all of them or none", given, missing));
  }
  return missing.empty();
}

void warn_if_others_can_read(const std::string& path, const char* flag) {
  struct stat about {};
  if (::stat(path.c_str(), &about) == 0 && (about.st_mode & S_IROTH) != 0) {
    log::warn("{}: every user of this machine can read {}; chmod 600 it", flag, path);
  }
}

std::shared_ptr<const net::TlsContext> load_tls(const net::TlsFiles& files,
                                                const net::TlsNames& names, net::TlsUse use) {
  auto context = net::TlsContext::load(files, names, use);
  if (!context) {
    throw StartupError(context.error());
  }
  warn_if_others_can_read(files.key, names.key.c_str());
  return *std::move(context);
}

// At most a little more than a token may have: the file may be /dev/zero.
std::string read_token_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(2 * handoff::kMaxTokenBytes, '\0');
  if (file) {
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
  }
  if (!file.is_open() || file.bad()) {
    throw StartupError(
        fmt::format("--cluster-token-file: cannot read {}: {}", path, std::strerror(errno)));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::shared_ptr<const handoff::ClusterToken> load_token(const ServeOptions& options) {
  const char* variable = std::getenv(kTokenVariable);
  const std::string& path = options.cluster_token_file;
  if (variable == nullptr && path.empty()) {
    return nullptr;
  }
  if (variable != nullptr && !path.empty()) {
    throw StartupError(fmt::format("--cluster-token-file and {} are both given: which one is it?",
                                   kTokenVariable));
  }
  auto token = handoff::ClusterToken::parse(variable != nullptr ? std::string(variable)
                                                                : read_token_file(path));
  const std::string source = variable != nullptr ? kTokenVariable : "--cluster-token-file";
  if (!token) {
    throw StartupError(fmt::format("{}: {}", source, token.error().message));
  }
  if (variable == nullptr) {
    warn_if_others_can_read(path, "--cluster-token-file");
  }
  return std::make_shared<const handoff::ClusterToken>(*std::move(token));
}

}  // namespace

Guard load_guard(const ServeOptions& options) {
  Guard guard;
  const net::TlsNames http{"--ssl-cert-file", "--ssl-key-file", "--ssl-ca-certs"};
  const net::TlsNames nodes{"--node-tls-cert", "--node-tls-key", "--node-tls-ca"};
  if (all_or_none({{http.cert, options.ssl_cert_file}, {http.key, options.ssl_key_file}})) {
    guard.http = load_tls({options.ssl_cert_file, options.ssl_key_file, options.ssl_ca_certs}, http,
                          net::TlsUse::kHttp);
  } else if (!options.ssl_ca_certs.empty()) {
    throw StartupError("--ssl-ca-certs needs --ssl-cert-file and --ssl-key-file");
  }
  const bool node_tls = all_or_none({{nodes.cert, options.node_tls_cert},
                                     {nodes.key, options.node_tls_key},
                                     {nodes.ca, options.node_tls_ca}});
  if (options.role == message::NodeRole::kSingle) {
    if (node_tls || !options.cluster_token_file.empty()) {
      throw StartupError(
          "--node-tls-cert, --node-tls-key, --node-tls-ca and --cluster-token-file need "
          "--node-role prefill, decode or router: a single node has no peers");
    }
    return guard;
  }
  if (node_tls) {
    guard.nodes = load_tls({options.node_tls_cert, options.node_tls_key, options.node_tls_ca},
                           nodes, net::TlsUse::kNodes);
    log::info("node connections: mutual TLS");
  }
  guard.token = load_token(options);
  if (guard.token && !guard.nodes) {
    log::warn(
        "node connections: the cluster token authenticates peers and does not encrypt: "
        "whoever is on the network between nodes can read and change what they send");
  } else if (guard.token) {
    log::info("node connections: the cluster token is asked for, too");
  }
  return guard;
}

}  // namespace baton::app
