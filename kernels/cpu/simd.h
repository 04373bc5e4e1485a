// As many floats at a time as a register holds, and the two element types that weights and KV may
// have.
//
// Written with the compiler's vector extensions, so that the same text is AVX-512, AVX2 or NEON
// code; only the product of bfloat16 pairs names an instruction, where the machine has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace radix {

// Vectors are no wider than a register: compilers keep those in memory.
#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

// The registers in which a tile of products is summed, rows times vectors; the others are for what
// is multiplied.
constexpr int ACCUMULATORS = REGISTERS / 4 * 3;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));

struct bf16 {
  uint16_t bits;
};

inline Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

inline Ints load_units(const uint32_t* from) {
  Ints value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Floats splat(float value) { return value - Floats{}; }
inline Ints splat_unit(uint32_t value) { return static_cast<int32_t>(value) - Ints{}; }

inline Floats as_floats(Ints value) { return reinterpret_cast<Floats>(value); }
inline Ints as_ints(Floats value) { return reinterpret_cast<Ints>(value); }
inline Floats choose(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }

// 0, 1, 2 and so on.
inline Ints counting() {
  constexpr uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_units(numbers);
}

inline float sum(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  float total = 0;
  for (int i = 0; i < LANES; ++i) total += v[i];
  return total;
#endif
}

inline Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(
      _mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  return choose(a > b, a, b);
#endif
}

inline float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
  float most = v[0];
  for (int i = 1; i < LANES; ++i) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// 2^f on [-1/2, 1/2], times 2^n; 0 where that is below the smallest normal number.
inline Floats scaled_by_power(Floats p, Floats n) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  const Ints tiny = n < splat(-126.0f);
  const Ints exponent = __builtin_convertvector(choose(tiny, splat(0.0f), n), Ints) << 23;
  return as_floats((as_ints(p) + exponent) & ~tiny);
#endif
}

inline Floats nearest(Floats x) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x), 0));
#else
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats rounded = (x + magic) - magic;
  return choose(x < splat(-4194304.0f), splat(-4194304.0f), rounded);
#endif
}

// 2^x for x <= 0, to the precision that T can hold.
template <class T>
inline Floats exp2_of(Floats x);

template <>
inline Floats exp2_of<float>(Floats x) {
  const Floats n = nearest(x), f = x - n;
  Floats p = splat(1.53533e-4f);
  p = p * f + splat(1.3398874e-3f);
  p = p * f + splat(9.6184373e-3f);
  p = p * f + splat(5.5503324e-2f);
  p = p * f + splat(2.4022648e-1f);
  p = p * f + splat(6.9314720e-1f);
  p = p * f + splat(1.0f);
  return scaled_by_power(p, n);
}

// Three terms are right to 1e-4, a twentieth of what rounding to bfloat16 loses.
template <>
inline Floats exp2_of<bf16>(Floats x) {
  const Floats n = nearest(x), f = x - n;
  Floats p = splat(5.5171669e-2f);
  p = p * f + splat(2.4261121e-1f);
  p = p * f + splat(6.9326097e-1f);
  p = p * f + splat(9.9992807e-1f);
  return scaled_by_power(p, n);
}

constexpr float LOG2_E = 1.44269504f;

// e^-|x|: at most 1, so that nothing overflows.
inline Floats exp_of_minus_size(Floats x) {
  const Floats size = as_floats(as_ints(x) & splat_unit(0x7fffffffu));
  return exp2_of<float>(splat(0.0f) - size * splat(LOG2_E));
}

inline Floats tanh_of(Floats x) {
  const Floats small = exp_of_minus_size(x + x), one = splat(1.0f);
  const Floats size = (one - small) / (one + small);
  return choose(x < splat(0.0f), splat(0.0f) - size, size);
}

// x / (1 + e^-x).
inline Floats silu(Floats x) {
  const Floats small = exp_of_minus_size(x);
  const Floats one = splat(1.0f);
  const Floats numerator = choose(x > splat(0.0f), one, small);
  return x * numerator / (one + small);
}

inline float to_float(bf16 value) {
  const uint32_t wide = static_cast<uint32_t>(value.bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

inline float to_float(float value) { return value; }

inline bf16 round_to(float value, bf16*) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}

inline float round_to(float value, float*) { return value; }

template <class T>
inline T narrow(float value) {
  return round_to(value, static_cast<T*>(nullptr));
}

inline void store_as(bf16* to, Floats value) {
#if defined(__AVX512BF16__)
  const __m256bh narrow16 = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(value));
  std::memcpy(to, &narrow16, sizeof narrow16);
#else
  typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
  typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
  const Words bits = reinterpret_cast<Words>(value);
  const Words rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
  const Halves halves = __builtin_convertvector((value != value ? quiet : rounded) >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
#endif
}

inline void store_as(float* to, Floats value) { store(to, value); }

inline void prefetch(const void* from) { __builtin_prefetch(from, 0, 2); }

// Operands are read in units of 32 bits: one float, or a pair of bfloat16.
template <class T>
constexpr int PAIR = sizeof(uint32_t) / sizeof(T);

template <class T>
inline uint32_t unit_at(const T* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Where pairs of bfloat16 cannot be multiplied as they are, each half is, as a float.
#if defined(__AVX512BF16__)
template <class T>
constexpr int HALVES = 1;
#else
template <class T>
constexpr int HALVES = PAIR<T>;
#endif

// What products of T take on their left: activations, which then need not be widened each time.
template <class T>
using Left = std::conditional_t<HALVES<T> == 1, T, float>;

template <class T>
inline void copy_as(Left<T>* to, const T* from, int64_t size) {
  if constexpr (HALVES<T> == 1) std::memcpy(to, from, size * sizeof(T));
  else
    for (int64_t i = 0; i < size; ++i) to[i] = to_float(from[i]);
}

template <class T>
inline Ints half_of(Ints units, int half) {
  if constexpr (HALVES<T> == 1) return units;
  return half == 0 ? units << 16 : units & splat_unit(0xffff0000u);
}

template <class T>
inline Floats multiply_add(Floats acc, Ints one, Ints many) {
#if defined(__AVX512BF16__)
  if constexpr (PAIR<T> == 2)
    return reinterpret_cast<Floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(acc),
                                                     reinterpret_cast<__m512bh>(one),
                                                     reinterpret_cast<__m512bh>(many)));
#endif
  return acc + as_floats(one) * as_floats(many);
}

// To acc[r][v] is added what is at `row(r)`, for all lanes the same, times the units many[v].
template <class T, int ROWS, int WIDTH, class Row>
inline void multiply_add(Floats (&acc)[ROWS][WIDTH], const Ints (&many)[WIDTH], Row row) {
#pragma GCC unroll 2
  for (int half = 0; half < HALVES<T>; ++half) {
    Ints right[WIDTH];
#pragma GCC unroll 4
    for (int v = 0; v < WIDTH; ++v) right[v] = half_of<T>(many[v], half);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {
      const Left<T>* at = row(r);
      const Ints left = splat_unit(unit_at(at + half));
#pragma GCC unroll 4
      for (int v = 0; v < WIDTH; ++v) acc[r][v] = multiply_add<T>(acc[r][v], left, right[v]);
    }
  }
}

}  // namespace radix
