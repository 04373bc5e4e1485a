// Causal attention over pages in place, flash-style, in parts that are merged by log-sum-exp.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al.,
// "FlashAttention" (2022); the shared parts as in Juravsky et al., "Hydragen" (2024).
#pragma once

#include "groups.h"
#include "kv.h"
#include "matrix.h"

namespace radix {

constexpr float NOTHING = -1e30f;  // a score below all others, and still a number
constexpr int QUERY_ROWS = 6;      // 6 x 4 vectors of scores fit the registers
constexpr int SCORE_TILES = 4;

template <class T>
class Attention {
 public:
  Attention(Pool& pool, const KvShape& shape, int64_t heads)
      : pool_(pool), shape_(shape), heads_(heads), sharers_(heads / shape.kv_heads) {
    const int64_t queries = std::max(QUERIES, sharers_);
    for (int i = 0; i < pool.threads(); ++i) scratch_.emplace_back(queries, shape.head_dim);
  }

  // Prepare what all layers of a step share; called by one thread.
  void begin(const Batch& batch, bool together) {
    const int64_t enough = (4 * pool_.threads() + shape_.kv_heads - 1) / shape_.kv_heads;
    Grouping(batch, sharers_, enough, together, work_);
    parts_.resize(work_.total_parts * heads_ * part_size());
    tokens_ = batch.tokens;
  }

  const Work& work() const { return work_; }

  // Attention of `query` into `out`, both [tokens][heads * head_dim], over one layer's `kv`.
  // Scores are multiplied by `scale` and, with a `soft_cap` above 0, bent to soft_cap *
  // tanh(score / soft_cap). Called by every thread of a job; ends with a barrier.
  void run(int thread, const uint8_t* kv, const T* query, T* out, float scale, float soft_cap) {
    const int64_t units = work_.items.size() * shape_.kv_heads;
    pool_.share(units, [&](int64_t unit) {
      attend(scratch_[thread], kv, query, out, {scale, soft_cap},
             work_.items[unit / shape_.kv_heads], unit % shape_.kv_heads);
    }, 1);
    if (work_.total_parts)
      pool_.share(tokens_, [&](int64_t token) { merge(token, out); });
  }

 private:
  struct Bend {
    float scale, soft_cap;

    // From what scores are now to exponents of two.
    float factor() const { return soft_cap > 0.0f ? LOG2_E : scale * LOG2_E; }

    // Cap the scores of one query that sees the first `seen` tokens of `tiles` tiles, mask the
    // others, and return the largest in each lane.
    f32x16 operator()(float* score, int tiles, int64_t seen) const {
      if (soft_cap > 0.0f)
        for (int v = 0; v < tiles; ++v) {
          const f32x16 value = load(score + v * LANES) * splat(scale / soft_cap);
          store(score + v * LANES, tanh_of(value) * splat(soft_cap));
        }
      for (int v = static_cast<int>(std::max<int64_t>(0, seen) / LANES); v < tiles; ++v) {
        const int lanes = static_cast<int>(std::clamp<int64_t>(seen - v * LANES, 0, LANES));
        const i32x16 sees = COUNTING < splat_unit(lanes);
        store(score + v * LANES, choose(sees, load(score + v * LANES), splat(NOTHING)));
      }
      f32x16 most = splat(NOTHING);
      for (int v = 0; v < tiles; ++v) most = larger(most, load(score + v * LANES));
      return most;
    }
  };

  struct Scratch {
    Scratch(int64_t queries, int64_t head_dim)
        : query(queries * head_dim), shelf(head_dim), sums(queries * LANES), most(queries), visible(queries), out(queries * head_dim) {}
    std::vector<T> query;
    Shelf<T> shelf;
    std::vector<float> sums, most;
    std::vector<int64_t> visible;
    std::vector<float> out;
  };

  void attend(Scratch& mine, const uint8_t* kv, const T* query, T* out, Bend bend, const Item& item,
              int64_t head) {
    const int64_t dim = shape_.head_dim, queries = item.count * sharers_;
    for (int64_t i = 0; i < item.count; ++i) {
      const int64_t token = work_.members[item.first + i];
      std::memcpy(&mine.query[i * sharers_ * dim],
                  query + (token * heads_ + head * sharers_) * dim, sharers_ * dim * sizeof(T));
      for (int64_t j = 0; j < sharers_; ++j)
        mine.visible[i * sharers_ + j] = work_.visible[token];
    }
    std::fill_n(mine.most.begin(), queries, NOTHING);
    std::fill_n(mine.sums.begin(), queries * LANES, 0.0f);
    std::fill_n(mine.out.begin(), queries * dim, 0.0f);
    Finder<T> finder(kv, shape_, item.pages, head, mine.shelf);
    for (int64_t at = item.begin; at < item.end; at += BLOCK_TOKENS) {
      const int64_t end = std::min(item.end, at + BLOCK_TOKENS);
      const Block<T> block = finder.block(at, end);
      Ahead<T> ahead(finder, end, std::min(item.end, end + BLOCK_TOKENS), block.keys[0]);
      for (int64_t first = 0; first < queries; first += QUERY_ROWS) {
        const int64_t count = std::min<int64_t>(QUERY_ROWS, queries - first);
        // Queries are in order of position: the last one sees most.
        if (mine.visible[first + count - 1] <= at) continue;
        with_rows(count, [&]<int ROWS>() {
          if constexpr (ROWS <= QUERY_ROWS) look<ROWS>(mine, first, block, ahead, at, end, bend);
        });
      }
    }
    for (int64_t i = 0; i < queries; ++i) finish(mine, item, i, head, bend, out);
  }

  // Let ROWS queries see one block.
  template <int ROWS>
  void look(Scratch& mine, int64_t first, const Block<T>& block, Ahead<T>& ahead, int64_t at,
            int64_t end, Bend bend) {
    const int64_t dim = shape_.head_dim;
    // Queries are in order of position: what the last one does not see, none does.
    const auto seen = [&](int r) { return std::min(end, mine.visible[first + r]) - at; };
    const int tiles = static_cast<int>((seen(ROWS - 1) + LANES - 1) / LANES);
    alignas(64) float score[ROWS][BLOCK_TOKENS];
    for (int tile = 0; tile < tiles; tile += SCORE_TILES) {
      const auto* values = first == 0 ? block.values : block.keys;
      scores<ROWS>(&mine.query[first * dim], block, tile, ahead.next(), values + tile, score);
    }
    alignas(64) T weight[ROWS][BLOCK_TOKENS];
    f32x16 fade[ROWS];
    for (int r = 0; r < ROWS; ++r) {
      const f32x16 most = bend(score[r], tiles, seen(r));
      const float before = mine.most[first + r];
      const float now = std::max(before, largest(most));
      mine.most[first + r] = now;
      fade[r] = exp2_of<float>(splat((before - now) * bend.factor()));
      // Where it sees nothing, neither here nor in a block before, all weights are 0.
      const f32x16 total = now == NOTHING
          ? zeros(weight[r], tiles)
          : weigh(score[r], tiles, bend.factor(), now, block.value_scales, weight[r]);
      float* sums = &mine.sums[(first + r) * LANES];
      store(sums, load(sums) * fade[r] + total);
    }
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES)
      gather<ROWS, 4>(mine, first, block, tiles, weight, fade, d);
    for (; d < dim; d += LANES) gather<ROWS, 1>(mine, first, block, tiles, weight, fade, d);
  }

  static f32x16 zeros(T* weight, int tiles) {
    for (int v = 0; v < tiles; ++v) store_as(weight + v * LANES, splat(0.0f));
    return splat(0.0f);
  }

  // Weights of one query's scores, and their sums in each lane.
  static f32x16 weigh(const float* score, int tiles, float factor, float most, const float* scales,
                      T* weight) {
    f32x16 total = splat(0.0f);
    const f32x16 slope = splat(factor), level = splat(most * factor);
    for (int v = 0; v < tiles; ++v) {
      f32x16 p = exp2_of<T>(load(score + v * LANES) * slope - level);
      total += p;
      if (scales) p *= load(scales + v * LANES);
      store_as(weight + v * LANES, p);
    }
    return total;
  }

  // Products of ROWS queries with the keys of tiles [tile, tile + SCORE_TILES). Meanwhile the tile
  // `ahead` is fetched, a line a step: all at once would be waited for. Where these queries are all
  // that look at the block, so are the `values` of the same tiles.
  template <int ROWS>
  void scores(const T* query, const Block<T>& block, int tile, const uint32_t* ahead,
              const uint32_t* const* values, float (&score)[ROWS][BLOCK_TOKENS]) {
    const int64_t dim = shape_.head_dim, steps = dim / PAIR<T>;
    f32x16 acc[ROWS][SCORE_TILES];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < SCORE_TILES; ++v) acc[r][v] = splat(0.0f);
    const uint32_t* const* from = block.keys + tile;
    for (int64_t step = 0; step < steps; ++step) {
      i32x16 keys[SCORE_TILES];
      prefetch(ahead + step * LANES);
      if constexpr (ROWS < QUERY_ROWS) {
#pragma GCC unroll 4
        for (int v = 0; v < SCORE_TILES; ++v) prefetch(values[v] + step * LANES);
      }
#pragma GCC unroll 4
      for (int v = 0; v < SCORE_TILES; ++v) keys[v] = load_units(from[v] + step * LANES);
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; ++r) {
        const uint32_t one = unit_at(query + r * dim + step * PAIR<T>);
#pragma GCC unroll 4
        for (int v = 0; v < SCORE_TILES; ++v)
          acc[r][v] = multiply_add<T>(acc[r][v], one, keys[v]);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < SCORE_TILES; ++v) {
      const float* scales = block.key_scales + (tile + v) * LANES;
      const f32x16 scale = block.key_scales ? load(scales) : splat(1.0f);
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; ++r) store(&score[r][(tile + v) * LANES], acc[r][v] * scale);
    }
  }

  // out[d .. d + 16 WIDTH) = fade * out + weights times values.
  template <int ROWS, int WIDTH>
  void gather(Scratch& mine, int64_t first, const Block<T>& block, int tiles,
              const T (&weight)[ROWS][BLOCK_TOKENS], const f32x16 (&fade)[ROWS], int64_t d) {
    const int64_t dim = shape_.head_dim;
    f32x16 acc[ROWS][WIDTH];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v)
        acc[r][v] = load(&mine.out[(first + r) * dim + d + v * LANES]) * fade[r];
    for (int i = 0; i < tiles; ++i) {
      const uint32_t* values = block.values[i] + d;
      for (int step = 0; step < TILE_TOKENS / PAIR<T>; ++step, values += dim) {
        i32x16 many[WIDTH];
#pragma GCC unroll 4
        for (int v = 0; v < WIDTH; ++v) many[v] = load_units(values + v * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) {
          const uint32_t one = unit_at(&weight[r][i * TILE_TOKENS + step * PAIR<T>]);
#pragma GCC unroll 4
          for (int v = 0; v < WIDTH; ++v) acc[r][v] = multiply_add<T>(acc[r][v], one, many[v]);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v)
        store(&mine.out[(first + r) * dim + d + v * LANES], acc[r][v]);
  }

  // A part of one token and head: its largest score, in powers of two, and the sum of the weights
  // beside it; then, from LANES on, what these weights gathered. Parts share no cache line, since
  // threads write neighbours at the same time.
  int64_t part_size() const { return LANES + shape_.head_dim; }

  float* part(int64_t token, int64_t slot, int64_t head) {
    return &parts_[((work_.first_part[token] + slot) * heads_ + head) * part_size()];
  }

  void finish(Scratch& mine, const Item& item, int64_t query, int64_t head, Bend bend, T* out) {
    const int64_t dim = shape_.head_dim;
    const int64_t member = item.first + query / sharers_;
    const int64_t token = work_.members[member];
    const int64_t query_head = head * sharers_ + query % sharers_;
    const float total = sum(load(&mine.sums[query * LANES]));
    const float* from = &mine.out[query * dim];
    if (work_.first_part[token] < 0) {
      T* to = out + (token * heads_ + query_head) * dim;
      for (int64_t d = 0; d < dim; d += LANES) store_as(to + d, load(from + d) / splat(total));
    } else {
      float* to = part(token, work_.slots[member], query_head);
      to[0] = mine.most[query] * bend.factor();
      to[1] = total;
      std::memcpy(to + LANES, from, dim * sizeof(float));
    }
  }

  void merge(int64_t token, T* out) {
    if (work_.first_part[token] < 0) return;
    const int64_t dim = shape_.head_dim, count = work_.parts[token];
    for (int64_t head = 0; head < heads_; ++head) {
      float most = NOTHING;
      for (int64_t i = 0; i < count; ++i) most = std::max(most, part(token, i, head)[0]);
      float total = 0;
      for (int64_t i = 0; i < count; ++i) {
        float* one = part(token, i, head);
        one[0] = exp2_of<float>(splat(one[0] - most))[0];  // from here on its share
        total += one[1] * one[0];
      }
      T* to = out + (token * heads_ + head) * dim;
      for (int64_t d = 0; d < dim; d += LANES) {
        f32x16 all = splat(0.0f);
        for (int64_t i = 0; i < count; ++i) {
          const float* one = part(token, i, head);
          all += load(one + LANES + d) * splat(one[0]);
        }
        store_as(to + d, all / splat(total));
      }
    }
  }

  Pool& pool_;
  const KvShape shape_;
  const int64_t heads_, sharers_;
  int64_t tokens_ = 0;
  Work work_;
  std::vector<Scratch> scratch_;
  std::vector<float> parts_;
};

}  // namespace radix
