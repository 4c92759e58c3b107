/* rng_formula.h - the Philox4x32 generator for CPUs and GPUs (see rng.h). */
#ifndef BASE_RNG_FORMULA_H
#define BASE_RNG_FORMULA_H

#include "base/formula.h"
#include "base/rng.h"

enum { RNG_ROUNDS = 10 };

/* The increments of the two words of the key after each round: the fractional parts of the golden
 * ratio and of the square root of 3. */
#define RNG_WEYL_0 0x9e3779b9u
#define RNG_WEYL_1 0xbb67ae85u

/* Computes one round: multiplies two of the four words c; the halves of the products, combined with
 * the key k and the other two words, are the next four words. */
FORMULA void rng_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                       uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xd2511f53u * *c0, p2 = (uint64_t)0xcd9e8d57u * *c2;

    *c0 = (uint32_t)(p2 >> 32) ^ *c1 ^ k0;
    *c1 = (uint32_t)p2;
    *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
    *c3 = (uint32_t)p0;
}

/* Computes the four words of a block; see rng_block(). */
FORMULA void rng_words(const struct rng_key *key, uint32_t block, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    uint32_t c0 = block, c1 = key->step, c2 = key->lane, c3 = key->stream;
    int round;

    for (round = 0; round < RNG_ROUNDS; round++) {
        rng_round(&c0, &c1, &c2, &c3, k0, k1);
        k0 += RNG_WEYL_0;
        k1 += RNG_WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
