/* checksum.h - a number of 24 bits for a vector of floats, by which copies of it are compared.
 *
 * M = 2^24 - 3 is prime. The vector is cut into chunks of 4096; of element i of a chunk, as the
 * 32-bit word x_i that its bits are, with r = i / 16 its row and c = i mod 16 its column,
 *
 *     V(chunk) = sum of x_i * (256 - r) * F(c)        F: 16 primes above 256
 *     checksum = sum of V(chunk) * K(number of the chunk)    K: pseudo-random, from 1 to M - 1
 *
 * both mod M. A bit that flips changes a word by +-2^b, and no factor of the product with its weight
 * is a multiple of M: any single flip changes the checksum. The weights within a chunk are all
 * different, so that of any two elements that change places (if they differ mod M) the
 * checksum tells; chunks, rows or stretches of any length in each other's place, and any other damage,
 * escape one time in M. A sum over disjoint parts of the vector, whatever they are, is the
 * checksum of the whole, mod M.
 *
 * It is a float without loss (below 2^24). */
#ifndef BASE_CHECKSUM_H
#define BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_MODULUS = 16777213, CHECKSUM_CHUNK = 4096, CHECKSUM_COLUMNS = 16 };

/* Of x [n], which are elements `at`, at + 1, ... of the vector. *finite becomes false if one is NaN
 * or infinite, and is left alone else. One pass, as fast as memory is. */
uint32_t checksum_part(const float *x, size_t n, uint64_t at, bool *finite);

/* Only that: false if one is NaN or infinite. In the caches more than twice as fast. */
bool checksum_finite(const float *x, size_t n);

extern const uint32_t checksum_factor[CHECKSUM_COLUMNS]; /* F */

#ifdef __CUDACC__ /* GPUs compute it too */
__host__ __device__
#endif
static inline uint32_t checksum_key(uint64_t chunk) /* K: splitmix64's finisher, reduced to 1 .. M - 1 */
{
    uint64_t x = chunk + UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) % (CHECKSUM_MODULUS - 1) + 1);
}

static inline uint32_t checksum_add(uint32_t a, uint32_t b)
{
    return (uint32_t)(((uint64_t)a + b) % CHECKSUM_MODULUS);
}

#endif
