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
    parts_.resize(work_.total_parts * heads_ * shape_.head_dim);
    weights_.resize(work_.total_parts * heads_);
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
    });
    if (work_.total_parts)
      pool_.share(tokens_, [&](int64_t token) { merge(token, out); }, 8);
  }

 private:
  struct Bend {
    float scale, soft_cap;

    // From products to exponents of two.
    f32x16 operator()(f32x16 score) const {
      if (soft_cap <= 0.0f) return score * splat(scale * LOG2_E);
      return tanh_of(score * splat(scale / soft_cap)) * splat(soft_cap * LOG2_E);
    }
  };

  struct Weight {
    float most, sum;  // the largest score, in powers of two, and the sum of weights beside it
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
      for (int64_t first = 0; first < queries; first += QUERY_ROWS) {
        const int64_t count = std::min<int64_t>(QUERY_ROWS, queries - first);
        // Queries are in order of position: the last one sees most.
        if (mine.visible[first + count - 1] <= at) continue;
        with_rows(count, [&]<int ROWS>() {
          if constexpr (ROWS <= QUERY_ROWS) look<ROWS>(mine, first, block, at, end, bend);
        });
      }
    }
    for (int64_t i = 0; i < queries; ++i) finish(mine, item, i, head, out);
  }

  // Let ROWS queries see one block.
  template <int ROWS>
  void look(Scratch& mine, int64_t first, const Block<T>& block, int64_t at, int64_t end,
            Bend bend) {
    const int64_t dim = shape_.head_dim;
    const auto seen = [&](int r) { return std::min(end, mine.visible[first + r]) - at; };
    // Queries are in order of position: what the last one does not see, none does.
    const int tiles = static_cast<int>((seen(ROWS - 1) + LANES - 1) / LANES);
    alignas(64) float score[ROWS][BLOCK_TOKENS];
    f32x16 most[ROWS];
    for (int r = 0; r < ROWS; ++r) most[r] = splat(NOTHING);
    for (int tile = 0; tile < tiles; tile += SCORE_TILES)
      scores<ROWS>(&mine.query[first * dim], block, tile, bend, seen, score, most);
    alignas(64) T weight[ROWS][BLOCK_TOKENS];
    f32x16 fade[ROWS];
    for (int r = 0; r < ROWS; ++r) {
      const float before = mine.most[first + r];
      const float now = std::max(before, largest(most[r]));
      mine.most[first + r] = now;
      fade[r] = exp2_of<float>(splat(before - now));
      f32x16 total = splat(0.0f);
      for (int v = 0; v < tiles; ++v) {
        f32x16 p = exp2_of<T>(load(&score[r][v * LANES]) - splat(now));
        if (now == NOTHING) p = splat(0.0f);  // it sees nothing of this block, nor of any before
        total += p;
        if (block.value_scales) p *= load(block.value_scales + v * LANES);
        store_as(&weight[r][v * LANES], p);
      }
      float* sums = &mine.sums[(first + r) * LANES];
      store(sums, load(sums) * fade[r] + total);
    }
    int64_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES)
      gather<ROWS, 4>(mine, first, block, tiles, weight, fade, d);
    for (; d < dim; d += LANES) gather<ROWS, 1>(mine, first, block, tiles, weight, fade, d);
  }

  // Scores of tiles [tile, tile + SCORE_TILES), and the largest so far in each lane.
  template <int ROWS, class Seen>
  void scores(const T* query, const Block<T>& block, int tile, Bend bend, Seen seen,
              float (&score)[ROWS][BLOCK_TOKENS], f32x16 (&most)[ROWS]) {
    const int64_t dim = shape_.head_dim, steps = dim / PAIR<T>;
    f32x16 acc[ROWS][SCORE_TILES];
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < SCORE_TILES; ++v) acc[r][v] = splat(0.0f);
    const uint32_t* const* from = block.keys + tile;
    for (int64_t step = 0; step < steps; ++step) {
      i32x16 keys[SCORE_TILES];
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
    for (int r = 0; r < ROWS; ++r) {
      const int64_t in_sight = seen(r) - tile * LANES;
      for (int v = 0; v < SCORE_TILES; ++v) {
        f32x16 value = acc[r][v];
        if (block.key_scales) value *= load(block.key_scales + (tile + v) * LANES);
        value = bend(value);
        if (in_sight < (v + 1) * LANES) {
          const int lanes = static_cast<int>(std::clamp<int64_t>(in_sight - v * LANES, 0, LANES));
          value = choose(COUNTING < splat_unit(lanes), value, splat(NOTHING));
        }
        most[r] = larger(most[r], value);
        store(&score[r][(tile + v) * LANES], value);
      }
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

  void finish(Scratch& mine, const Item& item, int64_t query, int64_t head, T* out) {
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
      const int64_t part =
          (work_.first_part[token] + work_.slots[member]) * heads_ + query_head;
      weights_[part] = {mine.most[query], total};
      std::memcpy(&parts_[part * dim], from, dim * sizeof(float));
    }
  }

  void merge(int64_t token, T* out) {
    if (work_.first_part[token] < 0) return;
    const int64_t dim = shape_.head_dim, count = work_.parts[token];
    for (int64_t head = 0; head < heads_; ++head) {
      const auto at = [&](int64_t i) { return (work_.first_part[token] + i) * heads_ + head; };
      float most = NOTHING;
      for (int64_t i = 0; i < count; ++i) most = std::max(most, weights_[at(i)].most);
      float total = 0;
      for (int64_t i = 0; i < count; ++i) {
        Weight& part = weights_[at(i)];
        part.most = exp2_of<float>(splat(part.most - most))[0];  // from here on its share
        total += part.sum * part.most;
      }
      T* to = out + (token * heads_ + head) * dim;
      for (int64_t d = 0; d < dim; d += LANES) {
        f32x16 all = splat(0.0f);
        for (int64_t i = 0; i < count; ++i)
          all += load(&parts_[at(i) * dim + d]) * splat(weights_[at(i)].most);
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
  std::vector<Weight> weights_;
};

}  // namespace radix
