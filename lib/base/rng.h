/* rng.h - random numbers as a pure function of their place (counter-based).
 *
 * Philox4x32-10: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11. The key is
 * the 64-bit seed, low word first; the four words of the counter are index / 4, step, lane, stream,
 * so whoever computes element i of op s in lane l of step k gets the same bits.
 * Threads: any, no state. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng_key {
    uint64_t seed;
    uint32_t step;   /* low 32 bits of the step */
    uint32_t lane;
    uint32_t stream; /* which op or which use */
};

/* Four 32-bit words of block `block` (elements 4*block .. 4*block+3). */
void rng_block(const struct rng_key *key, uint32_t block, uint32_t out[4]);
/* Those of n blocks, one behind the other. */
void rng_blocks(const struct rng_key *key, uint32_t first, uint32_t n, uint32_t *out);
/* Word of element i, i < 2^34. */
uint32_t rng_u32(const struct rng_key *key, uint64_t i);
float rng_f32(const struct rng_key *key, uint64_t i); /* [0, 1), 24 bits */

/* A bijection of [0, n) onto itself: element `i` of the permutation keyed by (seed, epoch), at
 * O(1) cost (a Feistel network over the next even number of bits, cycle walking, see rng.c).
 * n >= 1, i < n. */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

/* Bytes from the kernel, for tokens and incarnations. 0 or ERR_IO. */
int rng_os(void *out, uint32_t n);

#endif
