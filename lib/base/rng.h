/* rng.h - counter-based random numbers: pure functions of the seed and the position.
 *
 * Philox4x32-10: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11. The key is
 * the 64-bit seed, low word first; the four words of the counter are index / 4, step, lane
 * (micro-batch), stream. Element i of op s in lane l of step k therefore has the same bits on every
 * task and device. Threads: any, no state. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng_key {
    uint64_t seed;
    uint32_t step;   /* low 32 bits of the step */
    uint32_t lane;   /* micro-batch of the step */
    uint32_t stream; /* identifies the op or the other use of the numbers */
};

/* Computes the four 32-bit words of a block (elements 4 * block .. 4 * block + 3). */
void rng_block(const struct rng_key *key, uint32_t block, uint32_t out[4]);
/* Computes the words of n consecutive blocks: out [4 * n]. */
void rng_blocks(const struct rng_key *key, uint32_t first, uint32_t n, uint32_t *out);
/* Returns the word of element i, i < 2^34. */
uint32_t rng_u32(const struct rng_key *key, uint64_t i);
float rng_f32(const struct rng_key *key, uint64_t i); /* [0, 1), 24 bits */

/* Returns element `i` of the permutation of [0, n) that (seed, epoch) selects, in O(1) time and
 * memory (a Feistel network with cycle walking, see rng.c). n >= 1, i < n. */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);

/* Fills out [n] with random bytes from the kernel, for tokens and incarnations. Returns 0 or
 * ERR_IO. */
int rng_os(void *out, uint32_t n);

#endif
