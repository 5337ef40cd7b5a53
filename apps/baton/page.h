// The page at `/`: page/index.html, put into the binary by the build. It is one file, the same for
// everybody: it asks /cluster and /v1/chat/completions for all that it shows. Immutable; any
// thread.
#pragma once

#include "baton/http/message.h"

#include <string>
#include <string_view>

namespace baton::app {

// Made by the build from page/index.html.
extern const std::string_view kPageHtml;

// A Content-Security-Policy under which only the inline <script> and <style> of `html` run, by
// hash, and nothing is loaded from or sent to another origin.
std::string content_security_policy(std::string_view html);

http::HttpResponse page_response();

}  // namespace baton::app
