// Numbers in 8 bits beside a scale: int8, and e4m3 floats.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace radix {

enum class Code : int64_t { none, int8, e4m3 };

inline float largest_of(Code code) { return code == Code::int8 ? 127.0f : 448.0f; }

// The nearest code of a value between -448 and 448: four bits of exponent, three of mantissa
// (Micikevicius et al., "FP8 formats for deep learning", 2022).
inline uint8_t to_e4m3(float value) {
  uint32_t bits;
  const float small = value * 0x1p-120f;  // the exponent's bias becomes that of the code
  std::memcpy(&bits, &small, sizeof bits);
  const uint32_t size = bits & 0x7fffffffu;
  const uint32_t code = (size + 0x7ffffu + ((size >> 20) & 1)) >> 20;
  return static_cast<uint8_t>(std::min(code, 0x7eu) | ((bits >> 24) & 0x80u));
}

// Codes of a vector; returns its scale.
template <class T>
inline float encode(Code code, const T* from, int64_t size, uint8_t* to) {
  float most = 0, total = 0;
  for (int64_t d = 0; d < size; ++d) {
    most = std::max(most, std::abs(to_float(from[d])));
    total += to_float(from[d]);
  }
  if (!std::isfinite(total)) {
    // What is no number stays none, so that whoever reads it notices.
    std::fill_n(to, size, uint8_t{0});
    return std::nanf("");
  }
  const float share = most > 0 ? largest_of(code) / most : 0.0f;
  for (int64_t d = 0; d < size; ++d) {
    const float value = to_float(from[d]) * share;
    to[d] = code == Code::int8 ? static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(value)))
                               : to_e4m3(value);
  }
  return most / largest_of(code);
}

inline Floats to_floats(Ints values) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(values)));
#else
  return __builtin_convertvector(values, Floats);
#endif
}

// A vector of bytes as integers.
template <bool SIGNED>
inline Ints widen(const uint8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Ints>(SIGNED ? _mm512_cvtepi8_epi32(bytes)
                                         : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Ints>(SIGNED ? _mm256_cvtepi8_epi32(bytes)
                                       : _mm256_cvtepu8_epi32(bytes));
#else
  Ints wide;
  for (int i = 0; i < LANES; ++i)
    wide[i] = SIGNED ? static_cast<int8_t>(from[i]) : static_cast<int32_t>(from[i]);
  return wide;
#endif
}

// A vector of codes as numbers, without their scale.
template <Code CODE>
inline Floats decode(const uint8_t* from) {
  if constexpr (CODE == Code::int8) return to_floats(widen<true>(from));
  const Ints wide = widen<false>(from);
  const Floats size = as_floats((wide & 0x7f) << 20) * splat(0x1p120f);
  return as_floats(as_ints(size) | ((wide & 0x80) << 24));
}

// `count` codes, a multiple of sixteen, as numbers without their scale.
template <class T>
inline void decode_all(Code code, const uint8_t* from, int64_t count, T* to) {
  if (code == Code::int8)
    for (int64_t i = 0; i < count; i += LANES) store_as(to + i, decode<Code::int8>(from + i));
  else
    for (int64_t i = 0; i < count; i += LANES) store_as(to + i, decode<Code::e4m3>(from + i));
}

// A unit of operands (see simd.h) in 8 bits: each code a sign and a size.
template <class T>
struct Coded {
  uint8_t codes[PAIR<T>];
};

inline uint8_t sign_and_size(int8_t code) {
  return static_cast<uint8_t>(code < 0 ? 0x80 | -code : code);
}

inline float of_sign_and_size(uint8_t code) {
  const float size = static_cast<float>(code & 0x7f);
  return code & 0x80 ? -size : size;
}

// Numbers whose sign and size are the lowest bits of `codes`.
inline Floats signed_floats(Ints codes) {
  return as_floats(as_ints(to_floats(codes & 0x7f)) | (codes & 0x80) << 24);
}

// A vector of units as they are multiplied with, without their scales.
inline Ints load_units(const Coded<float>* from) {
  return as_ints(signed_floats(widen<false>(from->codes)));
}

inline Ints load_units(const Coded<bf16>* from) {
  typedef uint16_t Pairs __attribute__((vector_size(2 * LANES)));
  Pairs pairs;
  std::memcpy(&pairs, from, sizeof pairs);
  const Ints both = __builtin_convertvector(pairs, Ints);
  // Up to 127 they are exact in the upper half of a float.
  const Ints first = as_ints(signed_floats(both)) >> 16;
  return (first & 0xffff) | as_ints(signed_floats(both >> 8));
}

// `WIDTH` vectors of units, which lie side by side.
template <int WIDTH, class Unit>
inline void load_units(const Unit* from, Ints (&to)[WIDTH]) {
#pragma GCC unroll 4
  for (int v = 0; v < WIDTH; ++v) to[v] = load_units(from + v * LANES);
}

#if defined(__AVX512VBMI__)
// The two bytes of each size as bfloat16.
struct SizeBytes {
  alignas(64) uint8_t low[128], high[128];
  SizeBytes() {
    for (int size = 0; size < 128; ++size) {
      const uint16_t bits = narrow<bf16>(static_cast<float>(size)).bits;
      low[size] = static_cast<uint8_t>(bits);
      high[size] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

inline const SizeBytes SIZE_BYTES;

// The same, by looking up 64 codes at once.
inline void load_units(const Coded<bf16>* from, Ints (&to)[2]) {
  const auto look_up = [](const uint8_t* table, __m512i codes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes,
                                    _mm512_load_si512(table + 64));
  };
  // Unpacking takes every other eight bytes.
  const __m512i halves = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  const __m512i codes = _mm512_permutexvar_epi64(halves, _mm512_loadu_si512(from));
  const __m512i low = look_up(SIZE_BYTES.low, codes);
  const __m512i high =
      look_up(SIZE_BYTES.high, codes) | (codes & _mm512_set1_epi8(static_cast<char>(0x80)));
  to[0] = reinterpret_cast<Ints>(_mm512_unpacklo_epi8(low, high));
  to[1] = reinterpret_cast<Ints>(_mm512_unpackhi_epi8(low, high));
}
#endif

}  // namespace radix
