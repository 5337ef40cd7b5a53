// Stands where cuda/ will be in a build without CUDA, so that no other file needs an #ifdef: making
// the backend is an error that says what is missing. Thread: any.
#pragma once

#include "baton/backend/backend.h"
#include "baton/base/result.h"

#include <memory>
#include <string>

namespace baton::backend {

// Errors: always kUnsupported.
Result<std::unique_ptr<Backend>> make_cuda_backend(const std::string& model_path);

}  // namespace baton::backend
