// In the place of fabric.cpp where UCX's headers were not there.
#include "baton/ucx/fabric.h"

namespace baton::ucx {

bool is_built() { return false; }

Result<std::shared_ptr<net::Fabric>> open_fabric(const UcxOptions& /*options*/) {
  return fail(ErrorCode::kUnsupported,
              "this baton was built without UCX; install libucx-dev and configure again");
}

}  // namespace baton::ucx
