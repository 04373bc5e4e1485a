// What Python calls. Every pointer is borrowed; the caller has checked shapes and types.
#include <memory>

#include "decoder.h"

using namespace radix;

namespace {

// As Python describes a layer: the same members for both element types.
struct WeightPointers {
  const void* data;
  const float* scales;  // or null
};

struct LayerPointers {
  const float* attention_norm;
  WeightPointers qkv;
  const float* qkv_bias;
  const float* query_norm;
  const float* key_norm;
  WeightPointers output;
  const float* output_bias;
  const float* mlp_norm;
  WeightPointers gate, up, down;
  int64_t rotates;
};

struct AnyDecoder {
  virtual ~AnyDecoder() = default;
  virtual void run(const Step& step) = 0;
};

template <class T>
struct TypedDecoder final : AnyDecoder {
  TypedDecoder(int threads, const Shape& s, const LayerPointers* layers,
               const WeightPointers& head, const void* embedding, const float* norm)
      : pool(threads), decoder(pool, s, packed(head, s.vocabulary, s.hidden),
                               static_cast<const T*>(embedding), norm) {
    const int64_t wide = s.heads * s.head_dim;
    const int64_t qkv = (s.heads + 2 * s.kv_heads) * s.head_dim;
    for (int64_t i = 0; i < s.layers; ++i) {
      const LayerPointers& l = layers[i];
      decoder.layers.push_back(
          {l.attention_norm, packed(l.qkv, qkv, s.hidden), l.qkv_bias, l.query_norm, l.key_norm,
           packed(l.output, s.hidden, wide), l.output_bias, l.mlp_norm,
           packed(l.gate, s.inner, s.hidden), packed(l.up, s.inner, s.hidden),
           packed(l.down, s.hidden, s.inner), l.rotates != 0});
    }
  }
  static Packed<T> packed(const WeightPointers& weight, int64_t columns, int64_t depth) {
    return {weight.data, weight.scales, columns, depth};
  }
  void run(const Step& step) override { decoder.run(step); }
  Pool pool;
  Decoder<T> decoder;
};

struct AnyAttention {
  virtual ~AnyAttention() = default;
  virtual void begin(const Batch& batch, bool together) = 0;
  virtual void append(void* kv, const int64_t* pages, const int64_t* offsets, int64_t tokens,
                      const void* key, const void* value) = 0;
  virtual void run(const void* kv, const void* query, void* out, float scale, float soft_cap) = 0;
  virtual const Work& work() const = 0;
};

template <class T>
struct TypedAttention final : AnyAttention {
  TypedAttention(int threads, const KvShape& s, int64_t heads)
      : pool(threads), shape(s), attention(pool, s, heads) {}
  void begin(const Batch& batch, bool together) override { attention.begin(batch, together); }
  void append(void* kv, const int64_t* pages, const int64_t* offsets, int64_t tokens,
              const void* key, const void* value) override {
    const T *keys = static_cast<const T*>(key), *values = static_cast<const T*>(value);
    pool.run([&](int) {
      pool.share(tokens, [&](int64_t token) {
        for (int64_t head = 0; head < shape.kv_heads; ++head) {
          const int64_t at = (token * shape.kv_heads + head) * shape.head_dim;
          radix::append(static_cast<uint8_t*>(kv), shape, pages[token], offsets[token], head, keys + at,
                        values + at);
        }
      });
    });
  }
  void run(const void* kv, const void* query, void* out, float scale, float soft_cap) override {
    pool.run([&](int thread) {
      attention.run(thread, static_cast<const uint8_t*>(kv), static_cast<const T*>(query),
                    static_cast<T*>(out), scale, soft_cap);
    });
  }
  const Work& work() const override { return attention.work(); }
  Pool pool;
  KvShape shape;
  Attention<T> attention;
};

template <class T>
void multiply(int threads, const void* a, int64_t rows, const WeightPointers& weight,
              int64_t columns, int64_t depth, float* out) {
  const Packed<T> packed{weight.data, weight.scales, columns, depth};
  const int64_t stride = panels(columns) * PANEL;
  std::vector<Left<T>> left(rows * depth);
  copy_as(left.data(), static_cast<const T*>(a), rows * depth);
  Pool pool(threads);
  pool.run([&](int) {
    product(pool, left.data(), depth, rows, packed,
            [&](int64_t row, int64_t column, Floats values) {
              store(out + row * stride + column, values);
            });
  });
}

}  // namespace

extern "C" {

// The kind of product that this library was compiled for.
const char* radix_features() {
#if defined(__AVX512BF16__)
  return "avx512_bf16";
#elif defined(__AVX512F__)
  return "avx512";
#elif defined(__AVX2__)
  return "avx2";
#else
  return "generic";
#endif
}

// Bytes of a KV page of one layer.
int64_t radix_page_bytes(int64_t pair, int64_t page_size, int64_t kv_heads, int64_t head_dim,
                         int64_t code) {
  return (pair == 1 ? kv_shape<float>(page_size, kv_heads, head_dim, code)
                    : kv_shape<bf16>(page_size, kv_heads, head_dim, code))
      .page_bytes();
}

// Elements of a packed weight.
int64_t radix_packed_elements(int64_t columns, int64_t depth) {
  return panels(columns) * PANEL * depth;
}

// Pack a weight as it is, or, where there is room for `scales`, in int8.
void radix_pack(const void* from, int64_t columns, int64_t depth, int64_t pair, void* to,
                float* scales) {
  if (pair == 1) {
    const float* weight = static_cast<const float*>(from);
    if (scales) pack_codes(weight, columns, depth, static_cast<uint8_t*>(to), scales);
    else pack(weight, columns, depth, pair, static_cast<float*>(to));
  } else {
    const bf16* weight = static_cast<const bf16*>(from);
    if (scales) pack_codes(weight, columns, depth, static_cast<uint8_t*>(to), scales);
    else pack(weight, columns, depth, pair, static_cast<bf16*>(to));
  }
}

void radix_multiply(int64_t threads, const void* a, int64_t rows, const WeightPointers* weight,
                    int64_t columns, int64_t depth, int64_t pair, float* out) {
  const int count = static_cast<int>(threads);
  if (pair == 1) multiply<float>(count, a, rows, *weight, columns, depth, out);
  else multiply<bf16>(count, a, rows, *weight, columns, depth, out);
}

AnyAttention* radix_attention_new(int64_t threads, int64_t pair, int64_t page_size,
                                  int64_t kv_heads, int64_t head_dim, int64_t code,
                                  int64_t heads) {
  const int count = static_cast<int>(threads);
  if (pair == 1)
    return new TypedAttention<float>(count, kv_shape<float>(page_size, kv_heads, head_dim, code),
                                     heads);
  return new TypedAttention<bf16>(count, kv_shape<bf16>(page_size, kv_heads, head_dim, code),
                                  heads);
}

void radix_attention_free(AnyAttention* attention) { delete attention; }

void radix_attention_begin(AnyAttention* attention, const Batch* batch, int64_t together) {
  attention->begin(*batch, together != 0);
}

void radix_attention_append(AnyAttention* attention, void* kv, const int64_t* pages,
                            const int64_t* offsets, int64_t tokens, const void* key,
                            const void* value) {
  attention->append(kv, pages, offsets, tokens, key, value);
}

void radix_attention_run(AnyAttention* attention, const void* kv, const void* query, void* out,
                         float scale, float soft_cap) {
  attention->run(kv, query, out, scale, soft_cap);
}

// Tokens of KV that the decoding rows of the last step needed, and that were read for them.
void radix_attention_read(const AnyAttention* attention, int64_t* apart, int64_t* together) {
  *apart = attention->work().read_apart;
  *together = attention->work().read_together;
}

AnyDecoder* radix_decoder_new(int64_t threads, int64_t pair, const Shape* shape,
                              const LayerPointers* layers, const WeightPointers* head,
                              const void* embedding, const float* norm) {
  const int count = static_cast<int>(threads);
  if (pair == 1) return new TypedDecoder<float>(count, *shape, layers, *head, embedding, norm);
  return new TypedDecoder<bf16>(count, *shape, layers, *head, embedding, norm);
}

void radix_decoder_free(AnyDecoder* decoder) { delete decoder; }

void radix_decoder_run(AnyDecoder* decoder, const Step* step) { decoder->run(*step); }

}  // extern "C"
