#include "apps/baton/page.h"

#include "baton/base/check.h"
#include "baton/files/sha256.h"

#include <openssl/evp.h>

#include <span>

namespace baton::app {
namespace {

// The text between <tag> and </tag>; the page has each once, without attributes.
std::string_view inline_element(std::string_view html, const std::string& tag) {
  const std::string open = "<" + tag + ">";
  const std::size_t begin = html.find(open) + open.size();
  const std::size_t end = html.find("</" + tag + ">");
  BATON_CHECK(begin <= end && end < html.size() && html.find(open, begin) == std::string_view::npos,
              "the page must have one <{}>", tag);
  return html.substr(begin, end - begin);
}

std::string csp_hash(std::string_view text) {
  files::Sha256 hash;
  hash.update(std::as_bytes(std::span(text)));
  const files::Sha256Digest digest = hash.finish();
  std::string base64(4 * ((digest.size() + 2) / 3) + 1, '\0');
  const int written = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(base64.data()),
                                      reinterpret_cast<const unsigned char*>(digest.data()),
                                      static_cast<int>(digest.size()));
  base64.resize(static_cast<std::size_t>(written));
  return "'sha256-" + base64 + "'";
}

}  // namespace

std::string content_security_policy(std::string_view html) {
  return "default-src 'none'; script-src " + csp_hash(inline_element(html, "script")) +
         "; style-src " + csp_hash(inline_element(html, "style")) +
         "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
         "frame-ancestors 'none'";
}

http::HttpResponse page_response() {
  http::HttpResponse page;
  page.content_type = "text/html; charset=utf-8";
  page.headers = {{"Content-Security-Policy", content_security_policy(kPageHtml)},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cache-Control", "no-cache"}};
  page.body = std::string(kPageHtml);
  return page;
}

}  // namespace baton::app
