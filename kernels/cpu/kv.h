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
#pragma once

#include "simd.h"

namespace radix {

constexpr int TILE_TOKENS = LANES;
constexpr int BLOCK_TILES = 16;
constexpr int BLOCK_TOKENS = BLOCK_TILES * TILE_TOKENS;

struct KvShape {
  int64_t page_size;
  int64_t kv_heads;
  int64_t head_dim;

  bool tiled() const { return page_size % TILE_TOKENS == 0; }
  int64_t head_elements() const { return page_size * head_dim; }
  int64_t page_elements() const { return 2 * kv_heads * head_elements(); }
};

template <class T>
inline const T* keys_of(const T* kv, const KvShape& shape, int64_t page, int64_t head) {
  return kv + page * shape.page_elements() + head * shape.head_elements();
}

template <class T>
inline const T* values_of(const T* kv, const KvShape& shape, int64_t page, int64_t head) {
  return keys_of(kv, shape, page, shape.kv_heads + head);
}

// Put one token of one head into lane `lane` of a tile.
template <class T>
inline void put_key(T* tile, int64_t lane, int64_t head_dim, const T* key) {
  for (int64_t d = 0; d < head_dim; d += PAIR<T>)
    std::memcpy(tile + (d * TILE_TOKENS + lane * PAIR<T>), key + d, sizeof(uint32_t));
}

template <class T>
inline void put_value(T* tile, int64_t lane, int64_t head_dim, const T* value) {
  T* to = tile + lane / PAIR<T> * PAIR<T> * head_dim + lane % PAIR<T>;
  for (int64_t d = 0; d < head_dim; ++d) to[d * PAIR<T>] = value[d];
}

// Write the key and the value of one token and head to its slot.
template <class T>
inline void append(T* kv, const KvShape& shape, int64_t page, int64_t offset, int64_t head,
                   const T* key, const T* value) {
  T* keys = const_cast<T*>(keys_of(kv, shape, page, head));
  T* values = const_cast<T*>(values_of(kv, shape, page, head));
  if (shape.tiled()) {
    const int64_t tile = offset / TILE_TOKENS * TILE_TOKENS * shape.head_dim;
    put_key(keys + tile, offset % TILE_TOKENS, shape.head_dim, key);
    put_value(values + tile, offset % TILE_TOKENS, shape.head_dim, value);
  } else {
    std::memcpy(keys + offset * shape.head_dim, key, shape.head_dim * sizeof(T));
    std::memcpy(values + offset * shape.head_dim, value, shape.head_dim * sizeof(T));
  }
}

// Up to BLOCK_TOKENS tokens of one head, as the tiles that products read.
template <class T>
struct Block {
  const uint32_t* keys[BLOCK_TILES];
  const uint32_t* values[BLOCK_TILES];
  int tiles;
};

// Find tokens [first, last) of a sequence; `own` holds 2 * BLOCK_TOKENS * head_dim elements.
// Slots behind `last` are never read as numbers: they may hold anything.
template <class T>
inline Block<T> find_block(const T* kv, const KvShape& shape, const int32_t* pages, int64_t head,
                           int64_t first, int64_t last, T* own) {
  Block<T> block;
  const int64_t size = TILE_TOKENS * shape.head_dim;
  T* own_values = own + BLOCK_TILES * size;
  block.tiles = static_cast<int>((last - first + TILE_TOKENS - 1) / TILE_TOKENS);
  for (int i = 0; i < block.tiles; ++i) {
    const int64_t at = first + i * TILE_TOKENS;
    const int64_t used = last - at < TILE_TOKENS ? last - at : TILE_TOKENS;
    T* key = own + i * size;
    T* value = own_values + i * size;
    if (shape.tiled()) {
      const int64_t place = at % shape.page_size * shape.head_dim;
      const T* stored_key = keys_of(kv, shape, pages[at / shape.page_size], head) + place;
      const T* stored_value = values_of(kv, shape, pages[at / shape.page_size], head) + place;
      block.keys[i] = reinterpret_cast<const uint32_t*>(stored_key);
      block.values[i] = reinterpret_cast<const uint32_t*>(stored_value);
      if (used == TILE_TOKENS) continue;
      // Scores of unused slots are replaced; but 0 times the NaN of an unused value is still NaN.
      std::memcpy(value, stored_value, size * sizeof(T));
      for (int64_t lane = used; lane < TILE_TOKENS; ++lane) {
        T* to = value + lane / PAIR<T> * PAIR<T> * shape.head_dim + lane % PAIR<T>;
        for (int64_t d = 0; d < shape.head_dim; ++d) to[d * PAIR<T>] = narrow<T>(0.0f);
      }
    } else {
      std::memset(value, 0, size * sizeof(T));
      for (int64_t lane = 0; lane < used; ++lane) {
        const int64_t page = pages[(at + lane) / shape.page_size];
        const int64_t place = (at + lane) % shape.page_size * shape.head_dim;
        put_key(key, lane, shape.head_dim, keys_of(kv, shape, page, head) + place);
        put_value(value, lane, shape.head_dim, values_of(kv, shape, page, head) + place);
      }
      block.keys[i] = reinterpret_cast<const uint32_t*>(key);
    }
    block.values[i] = reinterpret_cast<const uint32_t*>(value);
  }
  for (int i = block.tiles; i < BLOCK_TILES; ++i) block.keys[i] = block.keys[0];  // masked
  return block;
}

}  // namespace radix
