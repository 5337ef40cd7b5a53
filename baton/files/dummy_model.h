// Models of known shapes with random weights, made in memory as a GGUF file would lie there: speed
// can be measured at real sizes without a download. Everything above reads them as any other file;
// they have no tokenizer and their answers mean nothing. Thread: any.
#pragma once

#include "baton/base/result.h"
#include "baton/files/gguf.h"

#include <string>
#include <vector>

namespace baton::files {

struct DummyModel {
  std::string shape;  // one of dummy_shapes()
  std::string dtype;  // of the matrices: "q4_0", "bf16", ...; case does not matter
};

std::vector<std::string> dummy_shapes();
std::vector<std::string> dummy_dtypes();

enum class DummyValues {
  kRandom,
  kNone,  // header and sizes only: reading it as a model touches no tensor byte
};

// The same bytes for the same arguments. Embedding and head of a 4-bit model are Q8_0, as in the
// files that people use. Errors: kInvalidArgument (shape or dtype unknown: the known ones are
// named), kOverloaded (no memory).
Result<GgufFile> make_dummy_model(const DummyModel& model, DummyValues values);

}  // namespace baton::files
