#include "baton/model/qwen3.h"

namespace baton::model {

Result<ModelDescription> describe_qwen3(const files::GgufFile& file) {
  Reader reader(file, std::string(kQwen3Architecture));
  BATON_TRY(ModelConfig config, read_decoder_config(reader));
  config.rope.kind = RopeKind::kHalves;
  config.qk_norm = true;
  BATON_TRY(ModelDescription description, read_decoder(reader, std::move(config)));
  BATON_TRY_VOID(reader.all_tensors_used());
  return description;
}

}  // namespace baton::model
