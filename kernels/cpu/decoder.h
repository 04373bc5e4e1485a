// One forward pass of a decoder of the Llama family: tokens in, logits of the sampled rows out.
//
// Pre-norm blocks with rotary attention and a gated MLP (Touvron et al., 2023); optional biases
// (Qwen2), norms of queries and keys (Qwen3), and layers without rotation (SmolLM3). All threads
// walk through the phases of the pass together.
#pragma once

#include <cmath>

#include "attention.h"

namespace radix {

// Pointers are borrowed and live as long as the model. Vectors are fp32.
template <class T>
struct Layer {
  const float* attention_norm;
  Packed<T> qkv;
  const float* qkv_bias;  // or null, like the next four
  const float* query_norm;
  const float* key_norm;
  Packed<T> output;
  const float* output_bias;
  const float* mlp_norm;
  Packed<T> gate, up, down;
  bool rotates;
};

struct Shape {
  int64_t layers, hidden, heads, kv_heads, head_dim, inner, vocabulary, page_size, code;
  float norm_epsilon, scale;
};

struct Step {
  Batch batch;
  const int64_t* token_ids;     // [tokens]
  const int64_t* pages;         // [tokens]: where each new token's KV goes
  const int64_t* offsets;       // [tokens]
  const float* cosines;         // [tokens][head_dim / 2]
  const float* sines;           // [tokens][head_dim / 2]
  const int64_t* sampled;       // [samples]: tokens whose logits are wanted
  int64_t samples;
  void* kv;                     // [layers][pages of the pool][page]
  int64_t layer_bytes;          // of kv
  float* logits;                // [samples][vocabulary, rounded up to a panel]
  float* states;                // [samples][hidden], in place of logits; or null
  bool together;                // read what rows share once
};

template <class T>
class Decoder {
 public:
  Decoder(Pool& pool, const Shape& shape, Packed<T> head, const T* embedding, const float* norm)
      : pool_(pool), shape_(shape), kv_(kv_shape<T>(shape.page_size, shape.kv_heads, shape.head_dim, shape.code)),
        head_(head), embedding_(embedding), norm_(norm), attention_(pool, kv_, shape.heads) {}

  std::vector<Layer<T>> layers;

  void run(const Step& step) {
    attention_.begin(step.batch, step.together);
    const int64_t tokens = step.batch.tokens;
    grow(residual_, tokens * width(shape_.hidden));
    grow(kept_, step.samples * width(shape_.hidden));
    grow(normed_, tokens * shape_.hidden);
    grow(projected_, tokens * width(qkv_columns()));
    grow(query_, tokens * shape_.heads * shape_.head_dim);
    grow(attended_, tokens * shape_.heads * shape_.head_dim);
    grow(inner_, tokens * width(shape_.inner));
    pool_.run([&](int thread) { walk(thread, step); });
  }

 private:
  static int64_t width(int64_t columns) { return panels(columns) * PANEL; }

  template <class V>
  static void grow(std::vector<V>& buffer, int64_t size) {
    if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
  }

  int64_t qkv_columns() const {
    return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  }

  void walk(int thread, const Step& step) {
    int64_t tokens = step.batch.tokens;
    const int64_t stride = width(shape_.hidden);
    float* residual = residual_.data();
    pool_.share(tokens, [&](int64_t token) {
      embed(step.token_ids[token], &residual[token * stride]);
      normalize(&residual[token * stride], layers[0].attention_norm, token);
    });
    for (size_t index = 0; index < layers.size(); ++index) {
      const Layer<T>& layer = layers[index];
      uint8_t* kv = static_cast<uint8_t*>(step.kv) + index * step.layer_bytes;
      const bool last = index + 1 == layers.size();
      attend(thread, step, layer, kv);
      const Left<T>* attended = attended_.data();
      if (last) {
        // Of the other tokens nothing is wanted any more: their keys and values are written.
        keep_sampled(step);
        residual = kept_.data();
        attended = query_.data();
        tokens = step.samples;
      }
      add_product(attended, shape_.heads * shape_.head_dim, tokens, layer.output,
                  layer.output_bias, residual);
      norm_rows(residual, tokens, layer.mlp_norm);
      twin_product(pool_, normed_.data(), shape_.hidden, tokens, layer.gate, layer.up,
                   [&](int64_t row, int64_t column, Floats gate, Floats up) {
                     store_as(&inner_[row * width(shape_.inner) + column], silu(gate) * up);
                   });
      add_product(inner_.data(), width(shape_.inner), tokens, layer.down, nullptr, residual);
      norm_rows(residual, tokens, last ? norm_ : layers[index + 1].attention_norm);
    }
    if (step.states) return keep_states(step);
    product(pool_, normed_.data(), shape_.hidden, step.samples, head_,
            [&](int64_t row, int64_t column, Floats values) {
              store(step.logits + row * width(shape_.vocabulary) + column, values);
            });
  }

  void attend(int thread, const Step& step, const Layer<T>& layer, uint8_t* kv) {
    const int64_t tokens = step.batch.tokens, stride = width(qkv_columns());
    product(pool_, normed_.data(), shape_.hidden, tokens, layer.qkv,
            [&](int64_t row, int64_t column, Floats values) {
              if (layer.qkv_bias) values += load(layer.qkv_bias + column);
              store(&projected_[row * stride + column], values);
            });
    pool_.share(tokens, [&](int64_t token) {
      place(step, layer, kv, token, &projected_[token * stride]);
    });
    attention_.run(thread, kv, query_.data(), attended_.data(), shape_.scale, 0.0f);
  }

  // What the head would read, unrounded.
  void keep_states(const Step& step) {
    pool_.share(step.samples, [&](int64_t sample) {
      const float* from = &kept_[sample * width(shape_.hidden)];
      float* to = step.states + sample * shape_.hidden;
      const float share = rms_share(from, shape_.hidden);
      for (int64_t i = 0; i < shape_.hidden; i += LANES)
        store(to + i, load(from + i) * splat(share) * load(norm_ + i));
    });
  }

  // The rows of the tokens that are sampled: residuals in `kept_`, attention in `query_`.
  void keep_sampled(const Step& step) {
    const int64_t stride = width(shape_.hidden), size = shape_.heads * shape_.head_dim;
    pool_.share(step.samples, [&](int64_t sample) {
      const int64_t token = step.sampled[sample];
      std::copy_n(&residual_[token * stride], stride, &kept_[sample * stride]);
      std::copy_n(&attended_[token * size], size, &query_[sample * size]);
    });
  }

  void embed(int64_t token, float* to) const {
    if (embedding_) {
      for (int64_t i = 0; i < shape_.hidden; ++i)
        to[i] = to_float(embedding_[token * shape_.hidden + i]);
      return;
    }
    // Tied to the output head: its column.
    for (int64_t i = 0; i < shape_.hidden; ++i) to[i] = head_.element(token, i);
  }

  float rms_share(const float* from, int64_t size) const {
    Floats squares = splat(0.0f);
    for (int64_t i = 0; i < size; i += LANES) squares += load(from + i) * load(from + i);
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + shape_.norm_epsilon);
  }

  // Root-mean-square norm (Zhang and Sennrich, 2019) of one row into row `to` of `normed_`.
  void normalize(const float* from, const float* weight, int64_t to) {
    const Floats share = splat(rms_share(from, shape_.hidden));
    for (int64_t i = 0; i < shape_.hidden; i += LANES)
      store_as(&normed_[to * shape_.hidden + i], load(from + i) * share * load(weight + i));
  }

  void norm_rows(const float* residual, int64_t tokens, const float* weight) {
    pool_.share(tokens, [&](int64_t token) {
      normalize(&residual[token * width(shape_.hidden)], weight, token);
    });
  }

  void add_product(const Left<T>* a, int64_t stride, int64_t tokens, const Packed<T>& weight,
                   const float* bias, float* residual) {
    const int64_t to = width(shape_.hidden);
    product(pool_, a, stride, tokens, weight, [&](int64_t row, int64_t column, Floats values) {
      if (bias) values += load(bias + column);
      float* sum = residual + row * to + column;
      store(sum, load(sum) + values);
    });
  }

  // Turn each pair (d, d + head_dim / 2) of a head by the token's angles.
  void rotate(float* head, const float* cosines, const float* sines) const {
    float *low = head, *high = head + shape_.head_dim / 2;
    for (int64_t d = 0; d < shape_.head_dim / 2; ++d) {
      const float l = low[d], h = high[d];
      low[d] = l * cosines[d] - h * sines[d];
      high[d] = h * cosines[d] + l * sines[d];
    }
  }

  // One head's floats as E.
  template <class E>
  void put(E* to, const float* from) const {
    for (int64_t d = 0; d < shape_.head_dim; d += LANES) store_as(to + d, load(from + d));
  }

  // Rotate one token's queries and keys and put its keys and values into their slots.
  void place(const Step& step, const Layer<T>& layer, uint8_t* kv, int64_t token, float* row) {
    const int64_t dim = shape_.head_dim;
    const float* cosines = step.cosines + token * dim / 2;
    const float* sines = step.sines + token * dim / 2;
    T key[512], value[512];
    for (int64_t head = 0; head < shape_.heads + shape_.kv_heads; ++head) {
      float* from = row + head * dim;
      const bool is_query = head < shape_.heads;
      const float* norm = is_query ? layer.query_norm : layer.key_norm;
      if (norm) {
        const float share = rms_share(from, dim);
        for (int64_t d = 0; d < dim; ++d) from[d] *= share * norm[d];
      }
      if (layer.rotates) rotate(from, cosines, sines);
      if (is_query) {
        put(&query_[(token * shape_.heads + head) * dim], from);
        continue;
      }
      put(key, from);
      put(value, from + shape_.kv_heads * dim);
      append(kv, kv_, step.pages[token], step.offsets[token], head - shape_.heads, key, value);
    }
  }

  Pool& pool_;
  const Shape shape_;
  const KvShape kv_;
  const Packed<T> head_;
  const T* embedding_;
  const float* norm_;
  Attention<T> attention_;
  std::vector<float> residual_, kept_, projected_;
  std::vector<Left<T>> normed_, query_, attended_, inner_;
};

}  // namespace radix
