/* checksum.h - a 24-bit checksum of a vector of floats, with which replicas compare their copies.
 *
 * M = 2^24 - 3 is prime. The vector is divided into chunks of 4096 elements. Element i of a chunk
 * is read as the 32-bit word x_i; its row is r = i / 16, its column c = i mod 16:
 *
 *     V(chunk) = sum of x_i * (256 - r) * F(c)           F: 16 primes above 256
 *     checksum = sum of V(chunk) * K(index of the chunk) K: pseudo-random, from 1 to M - 1
 *
 * Both sums are mod M. Properties:
 *   - Every single bit flip changes the checksum: the flip changes a word by +-2^b, and neither
 *     2^b nor the weights are multiples of the prime M.
 *   - Every swap of two elements of a chunk that differ mod M changes the checksum, because all
 *     weights within a chunk differ.
 *   - Any other damage, such as exchanged chunks, rows or ranges, is missed with probability 1/M.
 *   - The checksums of disjoint parts that cover the vector add up, mod M, to its checksum.
 *
 * The checksum is below 2^24 and therefore exact as a float. */
#ifndef BASE_CHECKSUM_H
#define BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHECKSUM_MODULUS = 16777213, CHECKSUM_CHUNK = 4096, CHECKSUM_COLUMNS = 16 };

/* Returns the contribution of x [n], which are the elements `at` .. at + n - 1 of the vector. Sets
 * *finite to false if an element is NaN or infinite; otherwise *finite is unchanged. One pass at
 * memory bandwidth. */
uint32_t checksum_part(const float *x, size_t n, uint64_t at, bool *finite);

/* Returns false if an element is NaN or infinite. On cached data more than twice as fast as
 * checksum_part(). */
bool checksum_finite(const float *x, size_t n);

extern const uint32_t checksum_factor[CHECKSUM_COLUMNS]; /* F */

#ifdef __CUDACC__ /* kernels compute it too */
__host__ __device__
#endif
    /* K: the finalizer of SplitMix64, reduced to 1 .. M - 1 */
    static inline uint32_t
    checksum_key(uint64_t chunk)
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
