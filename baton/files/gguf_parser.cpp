#include "baton/files/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

namespace baton::files {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie");

namespace {

constexpr std::uint32_t kMagic = 0x46554747;    // "GGUF"
constexpr std::uint32_t kMaxAlignment = 65536;  // the largest page that a mapped file could want
constexpr std::uint64_t kMaxDims = 4;           // ggml's GGML_MAX_DIMS
// The shortest entries that the format allows: no count may promise more than the file can hold.
constexpr std::uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;           // key length, key, type, u8
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset
constexpr std::uint64_t kMaxElements = 1ULL << 62;                // ggml counts elements in int64

std::string quoted(std::string_view name) {
  // Names of a hostile file go to a terminal: only printable ASCII, and not at length.
  constexpr std::size_t kMaxShown = 80;
  std::string shown = "'";
  for (const char c : name.substr(0, kMaxShown)) {
    shown += (c >= 0x20 && c < 0x7F) ? c : '?';
  }
  return shown + (name.size() > kMaxShown ? "...'" : "'");
}

}  // namespace

std::size_t scalar_bytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

GgufParser::GgufParser(const std::string& path, MappedFile file) {
  result_.path_ = path;
  result_.file_ = std::move(file);
  bytes_ = result_.file_.bytes();
}

Result<GgufFile> GgufParser::parse(const std::string& path, MappedFile file) {
  GgufParser parser(path, std::move(file));
  BATON_TRY_VOID(parser.parse_all());
  return std::move(parser.result_);
}

Status GgufParser::parse_all() {
  BATON_TRY_VOID(parse_start());
  BATON_TRY_VOID(parse_metadata());
  BATON_TRY_VOID(check_alignment());
  BATON_TRY_VOID(check_split());
  if (tensor_count_ > left() / kMinTensorBytes) {
    return malformed(fmt::format("{} tensors need at least {} bytes each, {} bytes are there",
                                 tensor_count_, kMinTensorBytes, left()));
  }
  result_.tensors_.reserve(tensor_count_);
  offsets_.reserve(tensor_count_);
  for (std::uint64_t index = 0; index < tensor_count_; ++index) {
    BATON_TRY_VOID(parse_tensor_info(index));
  }
  return place_tensors();
}

tl::unexpected<Error> GgufParser::malformed(const std::string& what) const {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", result_.path_, what),
              result_.path_);
}

Result<std::span<const std::byte>> GgufParser::take(std::uint64_t bytes, std::string_view what) {
  if (bytes > left()) {
    return malformed(fmt::format("cut in {}: needs {} bytes at offset {}, {} are there", what,
                                 bytes, at_, left()));
  }
  const auto taken = bytes_.subspan(at_, bytes);
  at_ += bytes;
  return taken;
}

Result<std::uint64_t> GgufParser::read_unsigned(std::size_t bytes, std::string_view what) {
  BATON_TRY(const auto raw, take(bytes, what));
  std::uint64_t value = 0;
  std::memcpy(&value, raw.data(), bytes);
  return value;
}

Result<std::string_view> GgufParser::read_string(std::string_view what) {
  BATON_TRY(const std::uint64_t length, read_unsigned(8, what));
  BATON_TRY(const auto raw, take(length, what));
  return std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size());
}

Status GgufParser::parse_start() {
  if (bytes_.empty()) {
    return malformed("is empty; a GGUF file was expected");
  }
  BATON_TRY(const std::uint64_t magic, read_unsigned(4, "the magic"));
  if (magic != kMagic) {
    return malformed("is not a GGUF file (its first bytes are not 'GGUF')");
  }
  BATON_TRY(const std::uint64_t version, read_unsigned(4, "the version"));
  if (version != 2 && version != 3) {
    const bool swapped = version == 0x02000000 || version == 0x03000000;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: GGUF version {} is not supported{}; versions 2 and 3 are",
                            result_.path_, version, swapped ? " (the file is big-endian)" : ""),
                result_.path_);
  }
  BATON_TRY(tensor_count_, read_unsigned(8, "the tensor count"));
  BATON_TRY(entry_count_, read_unsigned(8, "the metadata count"));
  return {};
}

Status GgufParser::parse_metadata() {
  if (entry_count_ > left() / kMinEntryBytes) {
    return malformed(fmt::format("{} metadata keys need at least {} bytes each, {} bytes are there",
                                 entry_count_, kMinEntryBytes, left()));
  }
  result_.keys_.reserve(entry_count_);
  for (std::uint64_t index = 0; index < entry_count_; ++index) {
    const std::uint64_t begin = at_;
    BATON_TRY(const std::string_view key, read_string(fmt::format("metadata key {}", index)));
    if (key.empty()) {
      return malformed(fmt::format("metadata key {} is empty", index));
    }
    GgufValue value;
    BATON_TRY_VOID(parse_value(key, value));
    value.entry = bytes_.subspan(begin, at_ - begin);
    if (!result_.values_.emplace(key, value).second) {
      return malformed(fmt::format("key {} occurs twice", quoted(key)));
    }
    result_.keys_.push_back(key);
  }
  return {};
}

Status GgufParser::parse_value(std::string_view key, GgufValue& value) {
  const std::string what = "key " + quoted(key);
  BATON_TRY(const std::uint64_t type, read_unsigned(4, what));
  if (type > static_cast<std::uint64_t>(GgufValueType::kF64)) {
    return malformed(fmt::format("{} has unknown value type {}", what, type));
  }
  value.type = static_cast<GgufValueType>(type);
  if (value.type == GgufValueType::kArray) {
    return parse_array(key, value);
  }
  const std::uint64_t begin = at_;
  if (value.type == GgufValueType::kString) {
    BATON_TRY_VOID(read_string(what));
  } else {
    BATON_TRY_VOID(take(scalar_bytes(value.type), what));
  }
  value.bytes = bytes_.subspan(begin, at_ - begin);
  return {};
}

Status GgufParser::parse_array(std::string_view key, GgufValue& value) {
  const std::string what = "key " + quoted(key);
  BATON_TRY(const std::uint64_t element, read_unsigned(4, what));
  if (element > static_cast<std::uint64_t>(GgufValueType::kF64)) {
    return malformed(fmt::format("{} has unknown element type {}", what, element));
  }
  value.element = static_cast<GgufValueType>(element);
  if (value.element == GgufValueType::kArray) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: {} is an array of arrays", result_.path_, what), result_.path_);
  }
  BATON_TRY(value.count, read_unsigned(8, what));
  const std::uint64_t least =
      value.element == GgufValueType::kString ? 8 : scalar_bytes(value.element);
  if (value.count > left() / least) {
    return malformed(fmt::format("{} has {} elements of at least {} bytes, {} bytes are there",
                                 what, value.count, least, left()));
  }
  const std::uint64_t begin = at_;
  if (value.element == GgufValueType::kString) {
    for (std::uint64_t index = 0; index < value.count; ++index) {
      BATON_TRY_VOID(read_string(what));
    }
  } else {
    BATON_TRY_VOID(take(value.count * least, what));
  }
  value.bytes = bytes_.subspan(begin, at_ - begin);
  return {};
}

Status GgufParser::check_alignment() {
  constexpr std::string_view kKey = "general.alignment";
  const GgufValue* value = result_.find(kKey);
  if (value == nullptr) {
    return {};
  }
  if (value->type != GgufValueType::kU32) {
    return malformed(fmt::format("key '{}' is of type {}, u32 is needed", kKey,
                                 gguf_value_type_name(value->type)));
  }
  std::uint32_t alignment = 0;
  std::memcpy(&alignment, value->bytes.data(), sizeof alignment);
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    return malformed(fmt::format("key '{}' is {}, a power of two in [1, {}] is needed", kKey,
                                 alignment, kMaxAlignment));
  }
  alignment_ = alignment;
  return {};
}

Status GgufParser::check_split() const {
  if (!result_.has("split.count")) {
    return {};
  }
  BATON_TRY(const std::int64_t parts, result_.integer("split.count"));
  if (parts <= 1) {
    return {};
  }
  BATON_TRY(const std::int64_t part, result_.integer_or("split.no", 0));
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: is part {} of a model split into {} files; split models are not "
                          "supported, merge the parts into one file first",
                          result_.path_, part + 1, parts),
              result_.path_);
}

Status GgufParser::parse_tensor_info(std::uint64_t index) {
  GgufTensor tensor;
  BATON_TRY(tensor.name, read_string(fmt::format("the name of tensor {}", index)));
  if (tensor.name.empty()) {
    return malformed(fmt::format("tensor {} has an empty name", index));
  }
  const std::string what = "tensor " + quoted(tensor.name);
  BATON_TRY(const std::uint64_t dims, read_unsigned(4, what));
  if (dims == 0 || dims > kMaxDims) {
    return malformed(
        fmt::format("{} has {} dimensions, 1 to {} are allowed", what, dims, kMaxDims));
  }
  std::uint64_t elements = 1;
  for (std::uint64_t d = 0; d < dims; ++d) {
    BATON_TRY(const std::uint64_t extent, read_unsigned(8, what));
    if (extent == 0) {
      return malformed(fmt::format("{}: dimension {} is 0", what, d));
    }
    if (extent > kMaxElements / elements) {
      return malformed(fmt::format("{} has more than {} elements", what, kMaxElements));
    }
    elements *= extent;
    tensor.dims.push_back(extent);
  }
  BATON_TRY(const std::uint64_t number, read_unsigned(4, what));
  const auto type = runnable_type(static_cast<std::uint32_t>(number));
  if (!type) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: {} is of type {} (number {}), which is not supported; {} are",
                    result_.path_, what, known_type_name(static_cast<std::uint32_t>(number)),
                    number, runnable_type_names()),
        result_.path_);
  }
  tensor.type = *type;
  if (tensor.dims[0] % tensor_type_block_elements(*type) != 0) {
    return malformed(fmt::format("{} has rows of {} elements, {} needs a multiple of {}", what,
                                 tensor.dims[0], tensor_type_name(*type),
                                 tensor_type_block_elements(*type)));
  }
  BATON_TRY(const std::uint64_t offset, read_unsigned(8, what));
  if (!result_.tensor_index_.emplace(tensor.name, index).second) {
    return malformed(fmt::format("{} occurs twice", what));
  }
  offsets_.push_back(offset);
  result_.tensors_.push_back(std::move(tensor));
  return {};
}

Status GgufParser::place_tensors() {
  // at_ <= file size <= 2^63 and alignment <= 2^16: no overflow. The file may end before the border
  // when there are no tensors.
  const std::uint64_t data = (at_ + alignment_ - 1) / alignment_ * alignment_;
  result_.data_offset_ = std::min<std::uint64_t>(data, bytes_.size());
  const std::uint64_t there = bytes_.size() - result_.data_offset_;
  for (std::size_t index = 0; index < result_.tensors_.size(); ++index) {
    GgufTensor& tensor = result_.tensors_[index];
    const std::uint64_t offset = offsets_[index];
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensor.dims) {
      elements *= extent;
    }
    // elements <= 2^62 and blocks are >= 1 element: blocks * bytes is checked before it is formed.
    const std::uint64_t blocks = elements / tensor_type_block_elements(tensor.type);
    const std::uint64_t block_bytes = tensor_type_block_bytes(tensor.type);
    if (offset % alignment_ != 0) {
      return malformed(fmt::format("tensor {} starts at data offset {}, not a multiple of {}",
                                   quoted(tensor.name), offset, alignment_));
    }
    if (blocks > there / block_bytes || offset > there || blocks * block_bytes > there - offset) {
      const bool countable = blocks <= std::numeric_limits<std::uint64_t>::max() / block_bytes;
      return malformed(fmt::format(
          "cut in tensor {}: needs {} bytes at data offset {}, {} are there", quoted(tensor.name),
          countable ? std::to_string(blocks * block_bytes) : "more than 2^64", offset,
          offset > there ? 0 : there - offset));
    }
    tensor.bytes = bytes_.subspan(result_.data_offset_ + offset, blocks * block_bytes);
  }
  // Two tensors over the same bytes are never written by a converter: the directory is damaged.
  std::vector<std::size_t> order(result_.tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return offsets_[i]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = result_.tensors_[order[i - 1]];
    if (offsets_[order[i]] - offsets_[order[i - 1]] < before.bytes.size()) {
      return malformed(fmt::format("tensors {} and {} overlap", quoted(before.name),
                                   quoted(result_.tensors_[order[i]].name)));
    }
  }
  return {};
}

}  // namespace baton::files
