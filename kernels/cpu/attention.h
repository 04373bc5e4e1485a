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
constexpr int QUERY_ROWS = 6;

// Vectors beside each other in a tile of `rows` queries.
constexpr int width_of(int rows) { return rows * 4 <= ACCUMULATORS ? 4 : 2; }
static_assert(QUERY_ROWS * width_of(QUERY_ROWS) <= ACCUMULATORS);

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

  // Attention of `query` into `out`, both [tokens][heads * head_dim] of T or Left<T>, over one
  // layer's `kv`. Scores are multiplied by `scale` and, with a `soft_cap` above 0, bent to soft_cap
  // * tanh(score / soft_cap). Called by every thread of a job; ends with a barrier.
  template <class E>
  void run(int thread, const uint8_t* kv, const E* query, E* out, float scale, float soft_cap) {
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

    // Cap the scores of one query that sees the first `seen` of `tokens` tokens, mask the others,
    // and return the largest in each lane.
    Floats operator()(float* score, int tokens, int64_t seen) const {
      if (soft_cap > 0.0f)
        for (int i = 0; i < tokens; i += LANES) {
          const Floats value = load(score + i) * splat(scale / soft_cap);
          store(score + i, tanh_of(value) * splat(soft_cap));
        }
      const int some = static_cast<int>(std::max<int64_t>(0, seen) / LANES * LANES);
      for (int i = some; i < tokens; i += LANES) {
        const int lanes = static_cast<int>(std::clamp<int64_t>(seen - i, 0, LANES));
        store(score + i, choose(counting() < splat_unit(lanes), load(score + i), splat(NOTHING)));
      }
      Floats most = splat(NOTHING);
      for (int i = 0; i < tokens; i += LANES) most = larger(most, load(score + i));
      return most;
    }
  };

  struct Scratch {
    Scratch(int64_t queries, int64_t head_dim)
        : query(queries * head_dim), shelf(head_dim), sums(queries * LANES), most(queries), visible(queries), out(queries * head_dim) {}
    std::vector<Left<T>> query;
    Shelf<T> shelf;
    std::vector<float> sums, most;
    std::vector<int64_t> visible;
    std::vector<float> out;
  };

  template <class E>
  void attend(Scratch& mine, const uint8_t* kv, const E* query, E* out, Bend bend, const Item& item,
              int64_t head) {
    const int64_t dim = shape_.head_dim, queries = item.count * sharers_;
    for (int64_t i = 0; i < item.count; ++i) {
      const int64_t token = work_.members[item.first + i];
      copy_as(&mine.query[i * sharers_ * dim], query + (token * heads_ + head * sharers_) * dim,
              sharers_ * dim);
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
        with_rows<QUERY_ROWS>(count, [&]<int ROWS>() {
          look<ROWS>(mine, first, block, ahead, at, end, bend);
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
    const int tiles = static_cast<int>((seen(ROWS - 1) + TILE_TOKENS - 1) / TILE_TOKENS);
    const int tokens = tiles * TILE_TOKENS;
    constexpr int WIDTH = width_of(ROWS);
    alignas(64) float score[ROWS][BLOCK_TOKENS];
    for (int token = 0; token < tokens; token += WIDTH * LANES) {
      const auto* values = first == 0 ? block.values : block.keys;
      scores<ROWS, WIDTH>(&mine.query[first * dim], block, token, ahead.next(), values, score);
    }
    alignas(64) Left<T> weight[ROWS][BLOCK_TOKENS];
    Floats fade[ROWS];
    for (int r = 0; r < ROWS; ++r) {
      const Floats most = bend(score[r], tokens, seen(r));
      const float before = mine.most[first + r];
      const float now = std::max(before, largest(most));
      mine.most[first + r] = now;
      fade[r] = exp2_of<float>(splat((before - now) * bend.factor()));
      // Where it sees nothing, neither here nor in a block before, all weights are 0.
      const Floats total = now == NOTHING
          ? zeros(weight[r], tokens)
          : weigh(score[r], tokens, bend.factor(), now, block.value_scales, weight[r]);
      float* sums = &mine.sums[(first + r) * LANES];
      store(sums, load(sums) * fade[r] + total);
    }
    int64_t d = 0;
    for (; d + WIDTH * LANES <= dim; d += WIDTH * LANES)
      gather<ROWS, WIDTH>(mine, first, block, tiles, weight, fade, d);
    for (; d < dim; d += LANES) gather<ROWS, 1>(mine, first, block, tiles, weight, fade, d);
  }

  static Floats zeros(Left<T>* weight, int tokens) {
    for (int i = 0; i < tokens; i += LANES) store_as(weight + i, splat(0.0f));
    return splat(0.0f);
  }

  // Weights of one query's scores, and their sums in each lane.
  static Floats weigh(const float* score, int tokens, float factor, float most, const float* scales,
                      Left<T>* weight) {
    Floats total = splat(0.0f);
    const Floats slope = splat(factor), level = splat(most * factor);
    for (int i = 0; i < tokens; i += LANES) {
      Floats p = exp2_of<T>(load(score + i) * slope - level);
      total += p;
      if (scales) p *= load(scales + i);
      store_as(weight + i, p);
    }
    return total;
  }

  // Products of ROWS queries with the keys of WIDTH vectors of tokens, from `token` on. Meanwhile
  // the tile `ahead` is fetched, a line a step: all at once would be waited for. Where these
  // queries are all that look at the block, so are the `values` of the same tokens.
  template <int ROWS, int WIDTH>
  void scores(const Left<T>* query, const Block<T>& block, int token, const uint32_t* ahead,
              const uint32_t* const* values, float (&score)[ROWS][BLOCK_TOKENS]) {
    const int64_t dim = shape_.head_dim, steps = dim / PAIR<T>;
    Floats acc[ROWS][WIDTH];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v) acc[r][v] = splat(0.0f);
    const uint32_t* from[WIDTH];
#pragma GCC unroll 4
    for (int v = 0; v < WIDTH; ++v) from[v] = block.keys_from(token + v * LANES);
    values += token / TILE_TOKENS;
    for (int64_t step = 0; step < steps; ++step) {
      Ints keys[WIDTH];
      prefetch(ahead + step * TILE_TOKENS);
      if constexpr (ROWS < QUERY_ROWS) {
#pragma GCC unroll 4
        for (int i = 0; i * TILE_TOKENS < WIDTH * LANES; ++i)
          prefetch(values[i] + step * TILE_TOKENS);
      }
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v) keys[v] = load_units(from[v] + step * TILE_TOKENS);
      multiply_add<T>(acc, keys, [&](int r) { return query + r * dim + step * PAIR<T>; });
    }
#pragma GCC unroll 4
    for (int v = 0; v < WIDTH; ++v) {
      const int at = token + v * LANES;
      const Floats scale = block.key_scales ? load(block.key_scales + at) : splat(1.0f);
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; ++r) store(&score[r][at], acc[r][v] * scale);
    }
  }

  // out[d .. d + WIDTH LANES) = fade * out + weights times values.
  template <int ROWS, int WIDTH>
  void gather(Scratch& mine, int64_t first, const Block<T>& block, int tiles,
              const Left<T> (&weight)[ROWS][BLOCK_TOKENS], const Floats (&fade)[ROWS], int64_t d) {
    const int64_t dim = shape_.head_dim;
    Floats acc[ROWS][WIDTH];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v)
        acc[r][v] = load(&mine.out[(first + r) * dim + d + v * LANES]) * fade[r];
    for (int i = 0; i < tiles; ++i) {
      const uint32_t* values = block.values[i] + d;
      for (int step = 0; step < TILE_TOKENS / PAIR<T>; ++step, values += dim) {
        Ints many[WIDTH];
#pragma GCC unroll 4
        for (int v = 0; v < WIDTH; ++v) many[v] = load_units(values + v * LANES);
        multiply_add<T>(acc, many,
                        [&](int r) { return &weight[r][i * TILE_TOKENS + step * PAIR<T>]; });
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v)
        store(&mine.out[(first + r) * dim + d + v * LANES], acc[r][v]);
  }

  // A part of one token and head: its largest score, in powers of two, and the sum of the weights
  // beside it; then, from the next cache line on, what these weights gathered. Parts share no line,
  // since threads write neighbours at the same time.
  static constexpr int64_t GATHERED = LINE / sizeof(float);
  int64_t part_size() const { return GATHERED + shape_.head_dim; }

  float* part(int64_t token, int64_t slot, int64_t head) {
    return &parts_[((work_.first_part[token] + slot) * heads_ + head) * part_size()];
  }

  template <class E>
  void finish(Scratch& mine, const Item& item, int64_t query, int64_t head, Bend bend, E* out) {
    const int64_t dim = shape_.head_dim;
    const int64_t member = item.first + query / sharers_;
    const int64_t token = work_.members[member];
    const int64_t query_head = head * sharers_ + query % sharers_;
    const float total = sum(load(&mine.sums[query * LANES]));
    const float* from = &mine.out[query * dim];
    if (work_.first_part[token] < 0) {
      E* to = out + (token * heads_ + query_head) * dim;
      for (int64_t d = 0; d < dim; d += LANES) store_as(to + d, load(from + d) / splat(total));
    } else {
      float* to = part(token, work_.slots[member], query_head);
      to[0] = mine.most[query] * bend.factor();
      to[1] = total;
      std::memcpy(to + GATHERED, from, dim * sizeof(float));
    }
  }

  template <class E>
  void merge(int64_t token, E* out) {
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
      E* to = out + (token * heads_ + head) * dim;
      for (int64_t d = 0; d < dim; d += LANES) {
        Floats all = splat(0.0f);
        for (int64_t i = 0; i < count; ++i) {
          const float* one = part(token, i, head);
          all += load(one + GATHERED + d) * splat(one[0]);
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
