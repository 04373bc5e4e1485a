// Products of activations with packed weights: from one row, where reading the weights is all the
// time, to hundreds, where the multipliers are.
//
// A weight of N columns and depth K is cut into panels of 32 columns. A panel holds, for each unit
// of depth, the units of its columns side by side, so that a tile reads it from front to end. Each
// element of a product is summed over the depth in one order, whatever the number of rows: it does
// not depend on what else is in the batch.
#pragma once

#include <algorithm>
#include <vector>

#include "codes.h"
#include "pool.h"

namespace radix {

constexpr int PANEL = 2 * LANES;

inline int64_t panels(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

// Weights are kept in units of T, or as int8 codes with one scale a column (`scales`), which panels
// are made of as they are read.
template <class T>
struct Packed {
  const void* data = nullptr;  // [panels][depth / PAIR][PANEL][PAIR] of T or int8
  const float* scales = nullptr;  // [panels * PANEL], or null
  int64_t columns = 0;
  int64_t depth = 0;  // a multiple of PAIR

  int64_t steps() const { return depth / PAIR<T>; }
  int64_t panel_elements() const { return depth * PANEL; }

  // The units of a panel, in place or in buffer `shelf` of this thread.
  const uint32_t* panel(int64_t index, int shelf = 0) const {
    if (!scales) return static_cast<const uint32_t*>(data) + index * steps() * PANEL;
    static thread_local std::vector<uint32_t> shelves[2];
    std::vector<uint32_t>& own = shelves[shelf];
    own.resize(steps() * PANEL);
    const uint8_t* codes = static_cast<const uint8_t*>(data) + index * panel_elements();
    decode_all(Code::int8, codes, panel_elements(), reinterpret_cast<T*>(own.data()));
    return own.data();
  }

  f32x16 scaled(int64_t column, f32x16 values) const {
    return scales ? values * load(scales + column) : values;
  }

  // Element `at` of a column, as it is multiplied with.
  float element(int64_t column, int64_t at) const {
    const int64_t place = column / PANEL * panel_elements() +
                          (at / PAIR<T> * PANEL + column % PANEL) * PAIR<T> + at % PAIR<T>;
    if (!scales) return to_float(static_cast<const T*>(data)[place]);
    return static_cast<float>(static_cast<const int8_t*>(data)[place]) * scales[column];
  }
};

// Pack `columns` rows of `depth` elements; the rest of the last panel is zeros.
template <class E>
void pack(const E* from, int64_t columns, int64_t depth, int64_t pair, E* to) {
  for (int64_t column = 0; column < panels(columns) * PANEL; ++column) {
    E* lane = to + column / PANEL * PANEL * depth + column % PANEL * pair;
    for (int64_t at = 0; at < depth; ++at)
      lane[at / pair * PANEL * pair + at % pair] =
          column < columns ? from[column * depth + at] : E{};
  }
}

// The same in int8, each column with a scale of its own.
template <class T>
void pack_codes(const T* from, int64_t columns, int64_t depth, uint8_t* to, float* scales) {
  std::vector<uint8_t> codes(columns * depth);
  std::fill_n(scales, panels(columns) * PANEL, 0.0f);
  for (int64_t column = 0; column < columns; ++column)
    scales[column] =
        encode(Code::int8, from + column * depth, depth, codes.data() + column * depth);
  pack(codes.data(), columns, depth, PAIR<T>, to);
}

// acc[r][v] = rows r of `a` times 16 v .. 16 v + 15 of each step's `WIDTH` vectors at `b`.
// With FETCH, what lies `ahead` units behind is brought into the cache meanwhile.
template <class T, int ROWS, int WIDTH, bool FETCH>
inline void tile(const T* const* a, const uint32_t* b, int64_t steps, int64_t ahead,
                 f32x16 (&acc)[ROWS][WIDTH]) {
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < WIDTH; ++v) acc[r][v] = splat(0.0f);
  for (int64_t step = 0; step < steps; ++step, b += WIDTH * LANES) {
    i32x16 many[WIDTH];
#pragma GCC unroll 8
    for (int v = 0; v < WIDTH; ++v) {
      many[v] = load_units(b + v * LANES);
      if constexpr (FETCH) prefetch(b + ahead + v * LANES);
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const uint32_t one = unit_at(a[r] + step * PAIR<T>);
#pragma GCC unroll 8
      for (int v = 0; v < WIDTH; ++v) acc[r][v] = multiply_add<T>(acc[r][v], one, many[v]);
    }
  }
}

constexpr int TILE_ROWS = 12;
constexpr int BLOCK_ROWS = 8 * TILE_ROWS;
constexpr int64_t NEAR = 1024;  // units: 4 KB

// Call `body<ROWS>()` with the number of rows as a constant, so that a tile stays in registers.
template <class Body>
inline void with_rows(int64_t rows, Body body) {
  switch (rows) {
    case 1: return body.template operator()<1>();
    case 2: return body.template operator()<2>();
    case 3: return body.template operator()<3>();
    case 4: return body.template operator()<4>();
    case 5: return body.template operator()<5>();
    case 6: return body.template operator()<6>();
    case 7: return body.template operator()<7>();
    case 8: return body.template operator()<8>();
    case 9: return body.template operator()<9>();
    case 10: return body.template operator()<10>();
    case 11: return body.template operator()<11>();
    default: return body.template operator()<12>();
  }
}

// Call `body<ROWS, FETCH>(pointers to the rows, first row, ahead)` for even tiles of rows [first,
// last): 13 rows are 7 and 6, not 12 and 1. Where one tile is all, reading the panel is all the
// time, and the processor alone reads fastest. Where there are more, the first fetches what it is
// about to read, and the others, which find the panel in the cache, the next panel.
template <class T, class Body>
inline void in_tiles(const T* a, int64_t stride, int64_t first, int64_t last, int64_t panel_units,
                     Body body) {
  const bool one = last - first <= TILE_ROWS;
  for (int64_t ahead = NEAR; first < last; ahead = panel_units) {
    const int64_t left = last - first;
    const int64_t tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t count = (left + tiles - 1) / tiles;
    const T* rows[TILE_ROWS];
    for (int64_t r = 0; r < count; ++r) rows[r] = a + (first + r) * stride;
    with_rows(count, [&]<int ROWS>() {
      if (one) body.template operator()<ROWS, false>(rows, first, ahead);
      else body.template operator()<ROWS, true>(rows, first, ahead);
    });
    first += count;
  }
}

// `each(panel, first row, last row)` for all panels and blocks of rows, by all threads of a job;
// ends with a barrier.
template <class Each>
void over_panels(Pool& pool, int64_t columns, int64_t rows, Each each) {
  const int64_t count = panels(columns), blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  pool.share(count * blocks, [&](int64_t index) {
    const int64_t first = index / count * BLOCK_ROWS;
    each(index % count, first, std::min(rows, first + BLOCK_ROWS));
  });
}

// a [rows][stride] times `weight`: `put(row, column, values)` for each sixteen columns of a row.
template <class T, class Put>
void product(Pool& pool, const T* a, int64_t stride, int64_t rows, const Packed<T>& weight,
             Put put) {
  const int64_t steps = weight.steps();
  over_panels(pool, weight.columns, rows, [&](int64_t panel, int64_t first, int64_t last) {
    const uint32_t* units = weight.panel(panel);
    in_tiles(a, stride, first, last, steps * PANEL,
             [&]<int ROWS, bool FETCH>(const T* const* row, int64_t at, int64_t ahead) {
      f32x16 acc[ROWS][2];
      tile<T, ROWS, 2, FETCH>(row, units, steps, ahead, acc);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const int64_t column = panel * PANEL;
        put(at + r, column, weight.scaled(column, acc[r][0]));
        put(at + r, column + LANES, weight.scaled(column + LANES, acc[r][1]));
      }
    });
  });
}

// The same for two weights of one shape: `put(row, column, values of the first, of the second)`.
template <class T, class Put>
void twin_product(Pool& pool, const T* a, int64_t stride, int64_t rows, const Packed<T>& one,
                  const Packed<T>& other, Put put) {
  const int64_t steps = one.steps();
  over_panels(pool, one.columns, rows, [&](int64_t panel, int64_t first, int64_t last) {
    const uint32_t *ones = one.panel(panel, 0), *others = other.panel(panel, 1);
    in_tiles(a, stride, first, last, steps * PANEL,
             [&]<int ROWS, bool FETCH>(const T* const* row, int64_t at, int64_t ahead) {
      f32x16 left[ROWS][2], right[ROWS][2];
      tile<T, ROWS, 2, FETCH>(row, ones, steps, ahead, left);
      tile<T, ROWS, 2, FETCH>(row, others, steps, ahead, right);
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < 2; ++v) {
          const int64_t column = panel * PANEL + v * LANES;
          put(at + r, column, one.scaled(column, left[r][v]), other.scaled(column, right[r][v]));
        }
    });
  });
}

}  // namespace radix
