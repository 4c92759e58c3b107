#include "base/rng.h"

#include <errno.h>
#include <sys/random.h>

#include "base/check.h"
#include "base/clones.h"
#include "base/err.h"
#include "base/rng_formula.h"

enum { FEISTEL_ROUNDS = 8, WIDE = 64 };

void rng_block(const struct rng_key *key, uint32_t block, uint32_t out[4])
{
    rng_words(key, block, out);
}

/* Computes up to WIDE blocks in parallel: the arithmetic of rng_block() in loops that the compiler
 * vectorises. */
CLONES static void wide_blocks(const struct rng_key *key, uint32_t first, uint32_t n, uint32_t *out)
{
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32), i;
    const uint32_t whole = (n + 15) / 16 * 16; /* rounded up, so that the loops have no remainder */
    uint32_t c0[WIDE], c1[WIDE], c2[WIDE], c3[WIDE];

    for (i = 0; i < whole; i++) {
        c0[i] = first + i;
        c1[i] = key->step;
        c2[i] = key->lane;
        c3[i] = key->stream;
    }
    for (int round = 0; round < RNG_ROUNDS; round++) {
        for (i = 0; i < whole; i++)
            rng_round(&c0[i], &c1[i], &c2[i], &c3[i], k0, k1);
        k0 += RNG_WEYL_0;
        k1 += RNG_WEYL_1;
    }
    for (i = 0; i < n; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

void rng_blocks(const struct rng_key *key, uint32_t first, uint32_t n, uint32_t *out)
{
    uint32_t i, some;

    for (i = 0; i < n; i += some) {
        some = n - i < WIDE ? n - i : WIDE;
        wide_blocks(key, first + i, some, out + 4 * (size_t)i);
    }
}

uint32_t rng_u32(const struct rng_key *key, uint64_t i)
{
    uint32_t words[4];

    CHECK(i >> 34 == 0);
    rng_block(key, (uint32_t)(i / 4), words);
    return words[i % 4];
}

float rng_f32(const struct rng_key *key, uint64_t i)
{
    return (float)(rng_u32(key, i) >> 8) * 0x1p-24f;
}

/* The finalizer of SplitMix64 (S. Vigna's constants): each bit of x affects all bits of the
 * result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A Feistel network is a bijection for every round function: a round swaps the halves and XORs a
 * function of one half to the other, which is invertible. The network permutes 2 * half_bits bits,
 * the smallest such domain that contains [0, n), so fewer than 4 * n values. A result outside
 * [0, n) goes through the network again (cycle walking): each cycle that starts inside [0, n)
 * returns to [0, n), so the whole is a bijection of [0, n). The average is below 4 passes. */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t key = mix(mix(seed + golden) + epoch), mask;
    unsigned half_bits = 1;

    CHECK(n >= 1 && i < n);
    if (n == 1)
        return 0;
    while (half_bits < 32 && (n - 1) >> (2 * half_bits) != 0)
        half_bits++;
    mask = ((uint64_t)1 << half_bits) - 1;
    do {
        uint64_t left = i >> half_bits, right = i & mask;

        for (uint64_t round = 1; round <= FEISTEL_ROUNDS; round++) {
            uint64_t f = mix(key + round * golden + right) >> 32;
            uint64_t sum = (left ^ f) & mask;

            left = right;
            right = sum;
        }
        i = left << half_bits | right;
    } while (i >= n);
    return i;
}

int rng_os(void *out, uint32_t n)
{
    unsigned char *at = out;

    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ERR_IO;
        at += got;
        n -= (uint32_t)got;
    }
    return 0;
}
