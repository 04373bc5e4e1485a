// Which rows of a step read which pages together.
//
// Rows that decode, and whose page rows begin alike, share a path in the radix tree. Each run of
// pages that several rows have in common becomes one item of work for all of them, nested runs
// included; what a row has for itself is its own item. Contexts are cut at multiples of SPLIT
// tokens, shared ones into longer parts, but for long chunks of a prefill, which are work enough. Without groups they are always
// cut, and the result of a row does not depend on the batch around it or on its chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace radix {

constexpr int64_t SPLIT = 512;
constexpr int64_t SHARED = 64;   // tokens in common below which a group is not worth its merging
constexpr int64_t QUERIES = 96;  // of one item, more or less

// Tokens `members[first .. first + count)` against tokens [begin, end) of the page row `pages`.
struct Item {
  int64_t first, count;
  const int32_t* pages;
  int64_t begin, end;
};

struct Batch {
  int64_t rows, tokens;
  const int32_t* qo_indptr;      // [rows + 1]
  const int32_t* kv_indptr;      // [rows + 1]
  const int32_t* kv_indices;     // page ids
  const int32_t* last_page_len;  // [rows]
  int64_t page_size;
};

struct Work {
  std::vector<Item> items;
  std::vector<int32_t> members;  // tokens of the step
  std::vector<int32_t> slots;    // beside each member: which of its token's parts this item is
  std::vector<int32_t> parts;    // [tokens]
  std::vector<int64_t> first_part;  // [tokens], -1 where there is only one part
  std::vector<int64_t> visible;  // [tokens]: how many tokens of its context each may look at
  int64_t total_parts = 0;
  int64_t read_apart = 0, read_together = 0;  // tokens of KV that decoding rows need, and read
};

class Grouping {
 public:
  // `enough` items for one row keep all threads busy.
  Grouping(const Batch& batch, int64_t sharers, int64_t enough, bool together, Work& work)
      : batch_(batch), block_(std::max<int64_t>(1, QUERIES / sharers)),
        enough_(together ? enough : INT64_MAX), work_(work) {
    work.items.clear();
    work.members.clear();
    work.slots.clear();
    work.parts.assign(batch.tokens, 0);
    work.first_part.assign(batch.tokens, -1);
    work.visible.resize(batch.tokens);
    work.read_apart = work.read_together = 0;
    std::vector<int32_t> decoding;
    for (int32_t row = 0; row < batch.rows; ++row) {
      const int64_t count = new_tokens(row), context = context_of(row);
      for (int64_t i = 0; i < count; ++i)
        work.visible[batch.qo_indptr[row] + i] = context - count + i + 1;
      if (count == 1 && together) decoding.push_back(row);
      else add_row(row, 0);
    }
    divide(decoding, 0, 0);
    number_parts();
    std::sort(work.items.begin(), work.items.end(), [](const Item& a, const Item& b) {
      return a.count * (a.end - a.begin) > b.count * (b.end - b.begin);
    });
  }

 private:
  int64_t new_tokens(int32_t row) const {
    return batch_.qo_indptr[row + 1] - batch_.qo_indptr[row];
  }
  int64_t context_of(int32_t row) const {
    const int64_t pages = batch_.kv_indptr[row + 1] - batch_.kv_indptr[row];
    return (pages - 1) * batch_.page_size + batch_.last_page_len[row];
  }
  const int32_t* pages_of(int32_t row) const {
    return batch_.kv_indices + batch_.kv_indptr[row];
  }
  // Pages of which every token is older than the row's new one.
  int64_t old_pages(int32_t row) const { return (context_of(row) - 1) / batch_.page_size; }

  // Rows that are alike before page `at`, and whose KV before page `from` is another item's.
  void divide(std::vector<int32_t>& rows, int64_t from, int64_t at) {
    if (rows.empty()) return;
    if (rows.size() == 1) return add_row(rows[0], from * batch_.page_size);
    int64_t alike = old_pages(rows[0]);
    for (size_t i = 1; i < rows.size(); ++i) {
      const int64_t most = std::min(alike, old_pages(rows[i]));
      const int32_t *one = pages_of(rows[0]), *other = pages_of(rows[i]);
      int64_t same = at;
      while (same < most && one[same] == other[same]) ++same;
      alike = std::max(same, at);
      if (alike == at) break;
    }
    if ((alike - from) * batch_.page_size >= SHARED) {
      add_together(rows, from * batch_.page_size, alike * batch_.page_size);
      from = alike;
    }
    const auto next = [&](int32_t row) {
      return alike < old_pages(row) ? pages_of(row)[alike] : -1;
    };
    std::stable_sort(rows.begin(), rows.end(),
                     [&](int32_t a, int32_t b) { return next(a) < next(b); });
    for (size_t i = 0; i < rows.size();) {
      size_t end = i + 1;
      while (end < rows.size() && next(rows[end]) == next(rows[i])) ++end;
      if (end - i == 1 || next(rows[i]) < 0) {
        for (; i < end; ++i) add_row(rows[i], from * batch_.page_size);
      } else {
        std::vector<int32_t> inner(rows.begin() + i, rows.begin() + end);
        divide(inner, from, alike);
        i = end;
      }
    }
  }

  void add_row(int32_t row, int64_t from) {
    const int64_t count = new_tokens(row), end = context_of(row), first = batch_.qo_indptr[row];
    if (count == 1) work_.read_apart += end, work_.read_together += end - from;
    const int64_t split = (count + block_ - 1) / block_ >= enough_ ? INT64_MAX : SPLIT;
    for (int64_t at = 0; at < count; at += block_) {
      const int64_t members = std::min(block_, count - at);
      const int64_t seen = end - count + at + members;
      add(pages_of(row), from, seen, split, members, [&](int64_t i) { return first + at + i; });
    }
  }

  void add_together(const std::vector<int32_t>& rows, int64_t from, int64_t end) {
    work_.read_together += end - from;
    // Every part of a row must be merged: no more of them than keep the threads busy.
    const int64_t share = (end - from + enough_ - 1) / enough_;
    const int64_t split = (share + SPLIT - 1) / SPLIT * SPLIT;
    for (size_t at = 0; at < rows.size(); at += block_) {
      const int64_t members = std::min<int64_t>(block_, rows.size() - at);
      add(pages_of(rows[0]), from, end, split, members,
          [&](int64_t i) { return batch_.qo_indptr[rows[at + i]]; });
    }
  }

  template <class Token>
  void add(const int32_t* pages, int64_t from, int64_t end, int64_t split, int64_t count,
           Token token) {
    for (int64_t begin = from; begin < end;) {
      const int64_t stop = split == INT64_MAX ? end : std::min(end, (begin / split + 1) * split);
      const int64_t first = work_.members.size();
      // A part that nothing of a token's context lies in would be a part without a weight.
      int64_t skipped = 0;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t member = token(i);
        if (work_.visible[member] <= begin) {
          ++skipped;
          continue;
        }
        work_.members.push_back(static_cast<int32_t>(member));
        work_.slots.push_back(work_.parts[member]++);
      }
      work_.items.push_back({first, count - skipped, pages, begin, stop});
      begin = stop;
    }
  }

  void number_parts() {
    work_.total_parts = 0;
    for (int64_t token = 0; token < batch_.tokens; ++token) {
      if (work_.parts[token] < 2) continue;
      work_.first_part[token] = work_.total_parts;
      work_.total_parts += work_.parts[token];
    }
  }

  const Batch& batch_;
  const int64_t block_, enough_;
  Work& work_;
};

}  // namespace radix
