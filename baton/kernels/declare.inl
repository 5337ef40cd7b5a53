// The functions that every instruction set defines, declared inside its namespace: included by
// ref/, avx2/ and avx512/ alike. The contracts are in kernels.h. No include guard: once per
// namespace.
void prepare_activations(ActivationFormat format, const float* x, std::int64_t x_stride,
                         std::int64_t rows, std::int64_t k, std::byte* out);
void matmul(const MatmulArgs& args, std::int64_t first_panel, std::int64_t last_panel,
            std::int64_t first_row, std::int64_t last_row);
void rmsnorm(float* x, std::int64_t x_stride, const float* residual, const float* weight, float eps,
             std::int64_t rows, std::int64_t n, float* out, std::int64_t out_stride);
void rope(const RopeTable& table, RopeStyle style, const std::int32_t* positions,
          std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, float* x,
          std::int64_t token_stride);
void silu_mul(const float* gate, const float* up, std::int64_t n, float* out);
void gelu_mul(const float* gate, const float* up, std::int64_t n, float* out);
void add(float* x, const float* y, std::int64_t n);
void exp(const float* x, std::int64_t n, float* out);
float max(const float* x, std::int64_t n);
float sum_exp(const float* x, std::int64_t n, float max);
std::int64_t argmax(const float* x, std::int64_t n);
void write_kv(const KvWriteArgs& args);
void attention(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
               std::byte* scratch);
void attention_part(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                    std::int64_t part, float* partials, std::byte* scratch);
void attention_merge(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                     std::int64_t parts, const float* partials);
