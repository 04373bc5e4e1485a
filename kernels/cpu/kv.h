// How keys and values lie in a page, and how they get there.
//
// A page holds the keys of each head, then the values of each head. Where the page size is a
// multiple of 16, a head's tokens lie in tiles of 16, in the order in which products read them:
//
//   keys    [tile][head_dim / PAIR][16 tokens][PAIR]
//   values  [tile][16 / PAIR][head_dim][PAIR]
//
// so that attention reads pages in place. Other page sizes keep them token by token, and attention
// copies them into tiles as it goes.
//
// KV in 8 bits keeps one byte an element in the same order, and behind them, for each head, one
// fp32 scale a token for its key and one for its value. A scale is that token's own, so that it
// never depends on what was appended before or after.
#pragma once

#include <algorithm>
#include <vector>

#include "codes.h"

namespace radix {

constexpr int TILE_TOKENS = 16;
constexpr int BLOCK_TILES = 16;
constexpr int BLOCK_TOKENS = BLOCK_TILES * TILE_TOKENS;

struct KvShape {
  int64_t page_size;
  int64_t kv_heads;
  int64_t head_dim;
  Code code;
  int64_t element;  // bytes

  bool tiled() const { return page_size % TILE_TOKENS == 0; }
  bool scaled() const { return code != Code::none; }
  int64_t head_bytes() const { return page_size * head_dim * element; }
  int64_t scales_at() const { return 2 * kv_heads * head_bytes(); }
  int64_t page_bytes() const {
    return scales_at() + (scaled() ? 2 * kv_heads * page_size * 4 : 0);
  }
  // Heads of keys, then heads of values.
  const uint8_t* codes(const uint8_t* kv, int64_t page, int64_t head) const {
    return kv + page * page_bytes() + head * head_bytes();
  }
  const float* scales(const uint8_t* kv, int64_t page, int64_t head) const {
    return reinterpret_cast<const float*>(kv + page * page_bytes() + scales_at()) +
           head * page_size;
  }
};

template <class T>
KvShape kv_shape(int64_t page_size, int64_t kv_heads, int64_t head_dim, int64_t code) {
  return {page_size, kv_heads, head_dim, static_cast<Code>(code),
          code ? int64_t{1} : static_cast<int64_t>(sizeof(T))};
}

// Put one token of one head into lane `lane` of a tile of E, whose units hold `pair` elements.
template <class E>
inline void put_key(E* tile, int64_t lane, int64_t head_dim, int pair, const E* key) {
  for (int64_t d = 0; d < head_dim; d += pair)
    for (int i = 0; i < pair; ++i) tile[d * TILE_TOKENS + lane * pair + i] = key[d + i];
}

template <class E>
inline void put_value(E* tile, int64_t lane, int64_t head_dim, int pair, const E* value) {
  E* to = tile + lane / pair * pair * head_dim + lane % pair;
  for (int64_t d = 0; d < head_dim; ++d) to[d * pair] = value[d];
}

template <class E>
inline void put(const KvShape& shape, uint8_t* head, int64_t offset, bool is_key, int pair,
                const E* vector) {
  E* to = reinterpret_cast<E*>(head);
  if (!shape.tiled()) {
    std::memcpy(to + offset * shape.head_dim, vector, shape.head_dim * sizeof(E));
    return;
  }
  to += offset / TILE_TOKENS * TILE_TOKENS * shape.head_dim;
  if (is_key) put_key(to, offset % TILE_TOKENS, shape.head_dim, pair, vector);
  else put_value(to, offset % TILE_TOKENS, shape.head_dim, pair, vector);
}

// Write the key and the value of one token and head to its slot.
template <class T>
inline void append(uint8_t* kv, const KvShape& shape, int64_t page, int64_t offset, int64_t head,
                   const T* key, const T* value) {
  for (const bool is_key : {true, false}) {
    const T* from = is_key ? key : value;
    const int64_t row = is_key ? head : shape.kv_heads + head;
    uint8_t* to = const_cast<uint8_t*>(shape.codes(kv, page, row));
    if (!shape.scaled()) {
      put(shape, to, offset, is_key, PAIR<T>, from);
      continue;
    }
    uint8_t codes[512];
    const_cast<float*>(shape.scales(kv, page, row))[offset] =
        encode(shape.code, from, shape.head_dim, codes);
    put(shape, to, offset, is_key, PAIR<T>, codes);
  }
}

// Up to BLOCK_TOKENS tokens of one head, as the tiles that products read.
template <class T>
struct Block {
  const uint32_t* keys[BLOCK_TILES];
  const uint32_t* values[BLOCK_TILES];
  int tiles;
  const float* key_scales = nullptr;  // [BLOCK_TOKENS], or none
  const float* value_scales = nullptr;

  // Where the keys of tokens [first, first + LANES), a vector of them, begin.
  const uint32_t* keys_from(int first) const {
    return keys[first / TILE_TOKENS] + first % TILE_TOKENS;
  }
};

// Where `find_block` puts what cannot be read in place.
template <class T>
struct Shelf {
  explicit Shelf(int64_t head_dim)
      : keys(BLOCK_TOKENS * head_dim), values(BLOCK_TOKENS * head_dim), scales(2 * BLOCK_TOKENS) {}
  std::vector<T> keys, values;
  std::vector<float> scales;
};

// Find tokens [first, last) of a sequence. Slots behind `last` are never read as numbers: they may
// hold anything.
template <class T>
class Finder {
 public:
  Finder(const uint8_t* kv, const KvShape& shape, const int32_t* pages, int64_t head,
         Shelf<T>& shelf)
      : kv_(kv), shape_(shape), pages_(pages), head_(head), shelf_(shelf) {}

  Block<T> block(int64_t first, int64_t last) {
    Block<T> found;
    found.tiles = static_cast<int>((last - first + TILE_TOKENS - 1) / TILE_TOKENS);
    for (int i = 0; i < found.tiles; ++i) {
      const int64_t at = first + i * TILE_TOKENS;
      const int64_t used = std::min<int64_t>(TILE_TOKENS, last - at);
      found.keys[i] = tile(i, at, used, true);
      found.values[i] = tile(i, at, used, false);
    }
    for (int i = found.tiles; i < BLOCK_TILES; ++i) {  // masked
      found.keys[i] = found.keys[0];
      found.values[i] = found.values[0];
    }
    if (shape_.scaled()) {
      std::fill_n(shelf_.scales.begin(), 2 * BLOCK_TOKENS, 0.0f);
      for (int64_t i = 0; i < last - first; ++i) {
        shelf_.scales[i] = scale(first + i, head_);
        shelf_.scales[BLOCK_TOKENS + i] = scale(first + i, shape_.kv_heads + head_);
      }
      found.key_scales = shelf_.scales.data();
      found.value_scales = found.key_scales + BLOCK_TOKENS;
    }
    return found;
  }

  // Where the keys or the values of the tile at `token` lie; null if they are not read in place.
  const uint32_t* place(int64_t token, bool is_key) const {
    if (!shape_.tiled() || shape_.scaled()) return nullptr;
    return reinterpret_cast<const uint32_t*>(stored(token, is_key));
  }

 private:
  float scale(int64_t token, int64_t row) const {
    return shape_.scales(kv_, pages_[token / shape_.page_size], row)[token % shape_.page_size];
  }

  const uint8_t* stored(int64_t token, bool is_key) const {
    const int64_t row = is_key ? head_ : shape_.kv_heads + head_;
    return shape_.codes(kv_, pages_[token / shape_.page_size], row) +
           token % shape_.page_size * shape_.head_dim * shape_.element;
  }

  const uint32_t* tile(int i, int64_t at, int64_t used, bool is_key) {
    const int64_t size = TILE_TOKENS * shape_.head_dim;
    T* own = (is_key ? shelf_.keys : shelf_.values).data() + i * size;
    if (!shape_.tiled()) {
      copy_tokens(own, at, used, is_key);
    } else if (shape_.scaled()) {
      const uint8_t* codes = stored(at, is_key);
      decode_all(shape_.code, codes, size, own);
      if (!is_key) clear(own, used);
    } else {
      const T* from = reinterpret_cast<const T*>(stored(at, is_key));
      // Scores of unused slots are replaced; but 0 times the NaN of an unused value is still NaN.
      if (is_key || used == TILE_TOKENS) return reinterpret_cast<const uint32_t*>(from);
      std::memcpy(own, from, size * sizeof(T));
      clear(own, used);
    }
    return reinterpret_cast<const uint32_t*>(own);
  }

  // Zeros in a tile of values behind the first `used` tokens.
  void clear(T* values, int64_t used) const {
    for (int64_t lane = used; lane < TILE_TOKENS; ++lane) {
      T* to = values + lane / PAIR<T> * PAIR<T> * shape_.head_dim + lane % PAIR<T>;
      for (int64_t d = 0; d < shape_.head_dim; ++d) to[d * PAIR<T>] = narrow<T>(0.0f);
    }
  }

  void copy_tokens(T* own, int64_t at, int64_t used, bool is_key) const {
    std::fill_n(own, TILE_TOKENS * shape_.head_dim, narrow<T>(0.0f));
    alignas(64) T decoded[512];
    for (int64_t lane = 0; lane < used; ++lane) {
      const uint8_t* from = stored(at + lane, is_key);
      const T* token = reinterpret_cast<const T*>(from);
      if (shape_.scaled()) {
        decode_all(shape_.code, from, shape_.head_dim, decoded);
        token = decoded;
      }
      if (is_key) put_key(own, lane, shape_.head_dim, PAIR<T>, token);
      else put_value(own, lane, shape_.head_dim, PAIR<T>, token);
    }
  }

  const uint8_t* const kv_;
  const KvShape& shape_;
  const int32_t* const pages_;
  const int64_t head_;
  Shelf<T>& shelf_;
};

// Hands out, one by one, the tiles of tokens [first, last), which are read in place soon.
template <class T>
class Ahead {
 public:
  // `none` is handed out when there are no more.
  Ahead(const Finder<T>& finder, int64_t first, int64_t last, const uint32_t* none)
      : finder_(finder), token_(first), last_(last), none_(none) {}

  const uint32_t* next() {
    if (token_ >= last_) return none_;
    const uint32_t* found = finder_.place(token_, is_key_);
    if (!is_key_) token_ += TILE_TOKENS;
    is_key_ = !is_key_;
    return found ? found : none_;
  }

 private:
  const Finder<T>& finder_;
  int64_t token_;
  const int64_t last_;
  const uint32_t* const none_;
  bool is_key_ = true;
};

}  // namespace radix
