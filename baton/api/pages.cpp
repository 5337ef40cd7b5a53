#include "baton/api/pages.h"

#include "baton/api/json_writer.h"

namespace baton::api {

std::string models_body(const std::vector<ModelCard>& models) {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const ModelCard& model : models) {
    json.begin_object();
    json.key("id").string(model.id);
    json.key("object").string("model");
    json.key("created").integer(model.created_s);
    json.key("owned_by").string("baton");
    json.key("max_model_len").integer(model.max_model_len);
    json.end_object();
  }
  json.end_array().end_object();
  return out;
}

http::HttpResponse health_response() {
  http::HttpResponse response;
  response.body = R"({"status":"ok"})";
  return response;
}

http::HttpResponse ready_response(bool ready, const std::vector<std::string>& missing) {
  http::HttpResponse response;
  response.status = ready ? 200 : 503;
  JsonWriter json(response.body);
  json.begin_object().key("status").string(ready ? "ready" : "not ready");
  json.key("missing").begin_array();
  for (const std::string& line : missing) {
    json.string(line);
  }
  json.end_array().end_object();
  if (!ready) {
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

}  // namespace baton::api
