#include "baton/base/cpu_features.h"
#include "baton/kernels/kernels.h"

#include <fmt/format.h>

namespace baton::kernels {

Result<Isa> parse_isa(std::string_view name) {
  if (name == "auto") {
    return Isa::kAuto;
  }
  if (name == "ref") {
    return Isa::kRef;
  }
  if (name == "avx2") {
    return Isa::kAvx2;
  }
  if (name == "avx512") {
    return Isa::kAvx512;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown instruction set '{}'; known: auto, ref, avx2, avx512", name));
}

Result<const KernelTable*> pick_kernels(Isa requested) {
  const CpuFeatures& cpu = cpu_features();
  const auto lacks = [](std::string_view name, const std::string& missing) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("this CPU cannot run the {} kernels: it lacks {}", name, missing));
  };
  switch (requested) {
    case Isa::kAuto:
      if (cpu.avx512) {
        return &avx512_kernels();
      }
      return cpu.avx2 ? &avx2_kernels() : &ref_kernels();
    case Isa::kRef:
      return &ref_kernels();
    case Isa::kAvx2:
      if (!cpu.avx2) {
        return lacks("avx2", cpu.missing_for_avx2);
      }
      return &avx2_kernels();
    case Isa::kAvx512:
      if (!cpu.avx512) {
        return lacks("avx512", cpu.missing_for_avx512);
      }
      return &avx512_kernels();
  }
  return fail(ErrorCode::kInternal, "unknown instruction set");
}

}  // namespace baton::kernels
