// Sixteen floats at a time, and the two element types that weights and KV may have.
//
// Written with the compiler's vector extensions, so that the same text is AVX-512, AVX2 or NEON
// code; only the product of bfloat16 pairs names an instruction, where the machine has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace radix {

constexpr int LANES = 16;

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));

struct bf16 {
  uint16_t bits;
};

inline f32x16 load(const float* from) {
  f32x16 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, f32x16 value) { std::memcpy(to, &value, sizeof value); }

inline i32x16 load_units(const uint32_t* from) {
  i32x16 value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline f32x16 splat(float value) {
  return f32x16{value, value, value, value, value, value, value, value,
                value, value, value, value, value, value, value, value};
}

inline i32x16 splat_unit(uint32_t value) {
  const int32_t v = static_cast<int32_t>(value);
  return i32x16{v, v, v, v, v, v, v, v, v, v, v, v, v, v, v, v};
}

inline f32x16 as_floats(i32x16 value) { return reinterpret_cast<f32x16>(value); }
inline i32x16 as_ints(f32x16 value) { return reinterpret_cast<i32x16>(value); }
inline f32x16 choose(i32x16 mask, f32x16 yes, f32x16 no) {
  return as_floats((as_ints(yes) & mask) | (as_ints(no) & ~mask));
}

constexpr i32x16 COUNTING{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline float sum(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  float total = 0;
  for (int i = 0; i < LANES; ++i) total += v[i];
  return total;
#endif
}

inline f32x16 larger(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
  return reinterpret_cast<f32x16>(
      _mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  return choose(a > b, a, b);
#endif
}

inline float largest(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
  float most = v[0];
  for (int i = 1; i < LANES; ++i) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// 2^f on [-1/2, 1/2], times 2^n; 0 where that is below the smallest normal number.
inline f32x16 scaled_by_power(f32x16 p, f32x16 n) {
#if defined(__AVX512F__)
  return reinterpret_cast<f32x16>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  const i32x16 tiny = n < splat(-126.0f);
  const i32x16 exponent = __builtin_convertvector(choose(tiny, splat(0.0f), n), i32x16) << 23;
  return as_floats((as_ints(p) + exponent) & ~tiny);
#endif
}

inline f32x16 nearest(f32x16 x) {
#if defined(__AVX512F__)
  return reinterpret_cast<f32x16>(_mm512_roundscale_ps(reinterpret_cast<__m512>(x), 0));
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const f32x16 rounded = (x + magic) - magic;
  return choose(x < splat(-4194304.0f), splat(-4194304.0f), rounded);
#endif
}

// 2^x for x <= 0, to the precision that T can hold.
template <class T>
inline f32x16 exp2_of(f32x16 x);

template <>
inline f32x16 exp2_of<float>(f32x16 x) {
  const f32x16 n = nearest(x), f = x - n;
  f32x16 p = splat(1.53533e-4f);
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
inline f32x16 exp2_of<bf16>(f32x16 x) {
  const f32x16 n = nearest(x), f = x - n;
  f32x16 p = splat(5.5171669e-2f);
  p = p * f + splat(2.4261121e-1f);
  p = p * f + splat(6.9326097e-1f);
  p = p * f + splat(9.9992807e-1f);
  return scaled_by_power(p, n);
}

constexpr float LOG2_E = 1.44269504f;

// e^-|x|: at most 1, so that nothing overflows.
inline f32x16 exp_of_minus_size(f32x16 x) {
  const f32x16 size = as_floats(as_ints(x) & splat_unit(0x7fffffffu));
  return exp2_of<float>(splat(0.0f) - size * splat(LOG2_E));
}

inline f32x16 tanh_of(f32x16 x) {
  const f32x16 small = exp_of_minus_size(x + x), one = splat(1.0f);
  const f32x16 size = (one - small) / (one + small);
  return choose(x < splat(0.0f), splat(0.0f) - size, size);
}

// x / (1 + e^-x).
inline f32x16 silu(f32x16 x) {
  const f32x16 small = exp_of_minus_size(x);
  const f32x16 one = splat(1.0f);
  const f32x16 numerator = choose(x > splat(0.0f), one, small);
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

inline void store_as(bf16* to, f32x16 value) {
#if defined(__AVX512BF16__)
  const __m256bh narrow16 = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(value));
  std::memcpy(to, &narrow16, sizeof narrow16);
#else
  for (int i = 0; i < LANES; ++i) to[i] = narrow<bf16>(value[i]);
#endif
}

inline void store_as(float* to, f32x16 value) { store(to, value); }

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

// acc + the product of one unit, for all lanes the same, with sixteen units.
template <class T>
inline f32x16 multiply_add(f32x16 acc, uint32_t one, i32x16 many);

template <>
inline f32x16 multiply_add<float>(f32x16 acc, uint32_t one, i32x16 many) {
  return acc + as_floats(splat_unit(one)) * as_floats(many);
}

template <>
inline f32x16 multiply_add<bf16>(f32x16 acc, uint32_t one, i32x16 many) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<f32x16>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(acc), reinterpret_cast<__m512bh>(splat_unit(one)),
      reinterpret_cast<__m512bh>(many)));
#else
  const i32x16 high = splat_unit(0xffff0000u);
  acc = acc + as_floats(splat_unit(one << 16)) * as_floats(many << 16);
  return acc + as_floats(splat_unit(one & 0xffff0000u)) * as_floats(many & high);
#endif
}

}  // namespace radix
