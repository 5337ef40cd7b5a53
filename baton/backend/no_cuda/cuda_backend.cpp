#include "baton/backend/no_cuda/cuda_backend.h"

namespace baton::backend {

Result<std::unique_ptr<Backend>> make_cuda_backend(const std::string& model_path) {
  return fail(ErrorCode::kUnsupported,
              "cannot load " + model_path +
                  " on a GPU: this baton was built without CUDA; use the CPU backend",
              "device");
}

}  // namespace baton::backend
