// Products of activations with packed weights: from one row, where reading the weights is all the
// time, to hundreds, where the multipliers are.
//
// A weight of N columns and depth K is cut into panels as wide as a tile of registers: 32 columns
// with AVX-512, 16 with AVX2. A panel holds, for each unit of depth, the units of its columns side
// by side, so that a tile reads it from front to end. Each element of a product is summed over the
// depth in one order, whatever the number of rows: it does not depend on what else is in the batch.
#pragma once

#include <algorithm>
#include <vector>

#include "codes.h"
#include "pool.h"

namespace radix {

constexpr int TILE_WIDTH = 2;  // vectors beside each other in a tile
constexpr int PANEL = TILE_WIDTH * LANES;
constexpr int PADDED = 32;  // columns are padded to a multiple of it, whatever a panel holds
constexpr int LINE = 64;  // bytes that are fetched at once

inline int64_t panels(int64_t columns) {
  return (columns + PADDED - 1) / PADDED * (PADDED / PANEL);
}

// Weights are kept in units of T, or as codes with one scale a column (`scales`), which become
// units in the registers of whoever multiplies with them.
template <class T>
struct Packed {
  const void* data = nullptr;  // [panels][depth / PAIR][PANEL] units or Coded units
  const float* scales = nullptr;  // [panels * PANEL], or null
  int64_t columns = 0;
  int64_t depth = 0;  // a multiple of PAIR

  int64_t panel_units() const { return depth / PAIR<T> * PANEL; }

  // Call `body(units)` with `data` as what it is.
  template <class Body>
  void with_units(Body body) const {
    if (scales) body(static_cast<const Coded<T>*>(data));
    else body(static_cast<const uint32_t*>(data));
  }

  Floats scaled(int64_t column, Floats values) const {
    return scales ? values * load(scales + column) : values;
  }

  // Element `at` of a column, as it is multiplied with.
  float element(int64_t column, int64_t at) const {
    const int64_t place = column / PANEL * depth * PANEL +
                          (at / PAIR<T> * PANEL + column % PANEL) * PAIR<T> + at % PAIR<T>;
    if (!scales) return to_float(static_cast<const T*>(data)[place]);
    return of_sign_and_size(static_cast<const uint8_t*>(data)[place]) * scales[column];
  }
};

// Pack `columns` rows of `depth` elements; the rest of the last panel is zeros. Written front to
// end, since it is done at every start.
template <class E>
void pack(const E* from, int64_t columns, int64_t depth, int64_t pair, E* to) {
  for (int64_t panel = 0; panel < panels(columns) * PANEL; panel += PANEL)
    for (int64_t at = 0; at < depth; at += pair)
      for (int64_t column = panel; column < panel + PANEL; ++column)
        for (int64_t i = 0; i < pair; ++i)
          *to++ = column < columns ? from[column * depth + at + i] : E{};
}

// The same in 8 bits, each column with a scale of its own.
template <class T>
void pack_codes(const T* from, int64_t columns, int64_t depth, uint8_t* to, float* scales) {
  std::vector<uint8_t> codes(columns * depth);
  std::fill_n(scales, panels(columns) * PANEL, 0.0f);
  for (int64_t column = 0; column < columns; ++column)
    scales[column] =
        encode(Code::int8, from + column * depth, depth, codes.data() + column * depth);
  for (uint8_t& code : codes) code = sign_and_size(static_cast<int8_t>(code));
  pack(codes.data(), columns, depth, PAIR<T>, to);
}

// out[r] = row r of `a` times the panel `b`. With FETCH, what lies `ahead` units behind is brought
// into the cache meanwhile. Compiled once for all products.
template <class T, int ROWS, bool FETCH, class Unit>
__attribute__((noinline)) void tile(const Left<T>* const* a, const Unit* b, int64_t steps,
                                    int64_t ahead, Floats (&out)[ROWS][TILE_WIDTH]) {
  Floats acc[ROWS][TILE_WIDTH];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < TILE_WIDTH; ++v) acc[r][v] = splat(0.0f);
  for (int64_t step = 0; step < steps; ++step, b += PANEL) {
    Ints many[TILE_WIDTH];
    load_units(b, many);
    if constexpr (FETCH)
      for (size_t at = 0; at < PANEL; at += LINE / sizeof(Unit)) prefetch(b + ahead + at);
    multiply_add<T>(acc, many, [&](int r) { return a[r] + step * PAIR<T>; });
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < TILE_WIDTH; ++v) out[r][v] = acc[r][v];
}

constexpr int TILE_ROWS = ACCUMULATORS / TILE_WIDTH;
constexpr int FEW_ROWS = 8;
constexpr int BLOCK_ROWS = 96;
static_assert(BLOCK_ROWS % TILE_ROWS == 0);
constexpr int64_t NEAR = 1024;  // units: 4 KB

// Call `body<ROWS>()` with the number of rows as a constant, so that a tile stays in registers.
template <int MOST, class Body>
inline void with_rows(int64_t rows, Body body) {
  if constexpr (MOST > 1)
    if (rows < MOST) return with_rows<MOST - 1>(rows, body);
  body.template operator()<MOST>();
}

// Call `body<ROWS, FETCH>(pointers to the rows, first row, ahead)` for even tiles of rows [first,
// last): 13 rows are 7 and 6, not 12 and 1. With few rows reading the panel is all the time, and
// the processor alone reads fastest. With more, the first tile fetches what it is about to read,
// and the others, which find the panel in the cache, the next panel.
template <class T, class Body>
inline void in_tiles(const Left<T>* a, int64_t stride, int64_t first, int64_t last,
                     int64_t panel_units, Body body) {
  const bool few = last - first <= FEW_ROWS;
  for (int64_t ahead = NEAR; first < last; ahead = panel_units) {
    const int64_t left = last - first;
    const int64_t tiles = (left + TILE_ROWS - 1) / TILE_ROWS;
    const int64_t count = (left + tiles - 1) / tiles;
    const Left<T>* rows[TILE_ROWS];
    for (int64_t r = 0; r < count; ++r) rows[r] = a + (first + r) * stride;
    with_rows<TILE_ROWS>(count, [&]<int ROWS>() {
      if (few) body.template operator()<ROWS, false>(rows, first, ahead);
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

// a [rows][stride] times `weight`: `put(row, column, values)` for each vector of columns of a row.
template <class T, class Put>
void product(Pool& pool, const Left<T>* a, int64_t stride, int64_t rows, const Packed<T>& weight,
             Put put) {
  const int64_t size = weight.panel_units(), steps = size / PANEL;
  weight.with_units([&](const auto* units) {
    over_panels(pool, weight.columns, rows, [&](int64_t panel, int64_t first, int64_t last) {
      in_tiles<T>(a, stride, first, last, size,
               [&]<int ROWS, bool FETCH>(const Left<T>* const* row, int64_t at, int64_t ahead) {
        Floats acc[ROWS][TILE_WIDTH];
        tile<T, ROWS, FETCH>(row, units + panel * size, steps, ahead, acc);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < TILE_WIDTH; ++v) {
            const int64_t column = panel * PANEL + v * LANES;
            put(at + r, column, weight.scaled(column, acc[r][v]));
          }
      });
    });
  });
}

// The same for two weights of one shape: `put(row, column, values of the first, of the second)`.
template <class T, class Put>
void twin_product(Pool& pool, const Left<T>* a, int64_t stride, int64_t rows, const Packed<T>& one,
                  const Packed<T>& other, Put put) {
  const int64_t size = one.panel_units(), steps = size / PANEL;
  one.with_units([&](const auto* ones) {
    const auto* others = static_cast<decltype(ones)>(other.data);
    over_panels(pool, one.columns, rows, [&](int64_t panel, int64_t first, int64_t last) {
      in_tiles<T>(a, stride, first, last, size,
               [&]<int ROWS, bool FETCH>(const Left<T>* const* row, int64_t at, int64_t ahead) {
        Floats left[ROWS][TILE_WIDTH], right[ROWS][TILE_WIDTH];
        tile<T, ROWS, FETCH>(row, ones + panel * size, steps, ahead, left);
        tile<T, ROWS, FETCH>(row, others + panel * size, steps, ahead, right);
        for (int r = 0; r < ROWS; ++r)
          for (int v = 0; v < TILE_WIDTH; ++v) {
            const int64_t column = panel * PANEL + v * LANES;
            put(at + r, column, one.scaled(column, left[r][v]), other.scaled(column, right[r][v]));
          }
      });
    });
  });
}

}  // namespace radix
