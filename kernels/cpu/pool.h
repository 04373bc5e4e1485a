// A few threads that run the same function and meet at barriers.
//
// A decode step has hundreds of phases of a few microseconds: threads spin for a moment before they
// sleep, and no phase starts or ends a thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace radix {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Wait until `value` is not `old`; asleep if it takes long, so that others may have the core.
inline void await_change(std::atomic<uint32_t>& value, uint32_t old) {
  for (int spin = 0; spin < 2000; ++spin) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int id = 1; id < threads; ++id) workers_.emplace_back([this, id] { work(id); });
  }

  ~Pool() {
    job_ = nullptr;
    announce();
    for (auto& worker : workers_) worker.join();
  }

  Pool(const Pool&) = delete;

  int threads() const { return threads_; }

  // Run `job(thread)` on every thread, the caller's included, and wait for all of them.
  void run(const std::function<void(int)>& job) {
    next_.store(0, std::memory_order_relaxed);
    job_ = &job;
    announce();
    job(0);
    barrier();
  }

  // Every thread waits here for the others. The shared counter begins anew behind it.
  void barrier() {
    const uint32_t turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == static_cast<uint32_t>(threads_) - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      turn_.notify_all();
    } else {
      await_change(turn_, turn);
    }
  }

  // Run `each(index)` for 0 .. count - 1, whoever is free, and wait for all. Called by every
  // thread of a job. Runs of neighbours are long at first and get shorter towards the end, so that
  // they are read front to end and no thread waits long for another (Polychronopoulos and Kuck,
  // "Guided self-scheduling", 1987); `longest` is for indices that are not alike.
  template <class Each>
  void share(int64_t count, Each each, int64_t longest = INT64_MAX) {
    int64_t first = next_.load(std::memory_order_relaxed);
    while (first < count) {
      const int64_t end = first + std::clamp<int64_t>((count - first) / (2 * threads_), 1, longest);
      if (!next_.compare_exchange_weak(first, end, std::memory_order_relaxed)) continue;
      for (int64_t index = first; index < end; ++index) each(index);
      first = next_.load(std::memory_order_relaxed);
    }
    barrier();
  }

 private:
  void announce() {
    call_.fetch_add(1, std::memory_order_release);
    call_.notify_all();
  }

  void work(int id) {
    uint32_t seen = 0;
    for (;;) {
      await_change(call_, seen);
      ++seen;
      if (job_ == nullptr) return;
      (*job_)(id);
      barrier();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> call_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace radix
