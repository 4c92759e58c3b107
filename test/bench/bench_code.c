/* bench_code - the speed of the codes of gradients on one core, beside memcpy: GB of float32 per second. The vector
 * is larger than the caches, as a gradient is. Codes with residuals encode the sum with a residual and leave the next one;
 * power_sgd has rank 4 and matrices of 1024 x 1024.
 *
 * Prints for each code "NAME encode X decode Y copy Z". The copy is measured in the same round; medians. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "code/code.h"
#include "code/power_sgd.h"
#include "code/residual.h"
#include "code/top_k.h"

enum { BLOCKS = 1 << 16, N = BLOCKS * CODE_BLOCK, SQUARE = 1024, ROUNDS = 9 }; /* 64 MiB */

#define FRACTION 0.01

struct times {
    double encode[ROUNDS], decode[ROUNDS], copy[ROUNDS];
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *seconds)
{
    qsort(seconds, ROUNDS, sizeof(*seconds), ascending);
    return seconds[ROUNDS / 2];
}

static double seconds_since(uint64_t ns)
{
    return (double)(clock_ns() - ns) / 1e9;
}

/* ---- the codes ---- */

struct side {
    enum code_kind kind;
    void (*encode)(const struct side *s);
    void (*decode)(const struct side *s);
    float *x, *y; /* [N] */
    float *left;  /* [N] the sum with a residual, and then the residual */
    uint8_t *code;
    float *p, *q; /* of a matrix of SQUARE x SQUARE numbers */
};

static void encode_blocks(const struct side *s)
{
    const struct code_key key = { .seed = 1, .step = 2, .place = 3 };

    code_encode(s->kind, &key, 0, s->x, BLOCKS, s->code);
}

static void decode_blocks(const struct side *s)
{
    code_decode(s->kind, s->code, BLOCKS, s->y);
}

static void encode_top_k(const struct side *s)
{
    code_residual_add(s->x, s->left, N, s->left);
    top_k_encode(FRACTION, s->left, N, s->code);
}

static void decode_top_k(const struct side *s)
{
    top_k_decode(FRACTION, s->code, N, s->y);
}

static const struct power_sgd matrix = { SQUARE, SQUARE, 4, 1, 0 };

static void encode_power_sgd(const struct side *s)
{
    power_sgd_begin(&matrix, s->q);
    for (size_t at = 0; at < N; at += SQUARE * SQUARE) {
        code_residual_add(s->x + at, s->left + at, SQUARE * SQUARE, s->left + at);
        power_sgd_left(&matrix, s->left + at, s->q, s->p);
        power_sgd_orthogonalize(&matrix, s->p);
        power_sgd_right(&matrix, s->left + at, s->p, s->q);
        power_sgd_subtract(&matrix, s->p, s->q, s->left + at);
    }
}

static void decode_power_sgd(const struct side *s)
{
    for (size_t at = 0; at < N; at += SQUARE * SQUARE)
        power_sgd_decode(&matrix, s->p, s->q, s->y + at);
}

static void measure(const struct side *s)
{
    const double bytes = (double)N * sizeof(float) / 1e9;
    struct times t;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t begin = clock_ns();

        s->encode(s);
        t.encode[i] = seconds_since(begin);
        begin = clock_ns();
        s->decode(s);
        t.decode[i] = seconds_since(begin);
        begin = clock_ns();
        memcpy(s->y, s->x, N * sizeof(*s->y));
        t.copy[i] = seconds_since(begin);
    }
    printf("%s encode %.3f decode %.3f copy %.3f\n", code_name(s->kind), bytes / median(t.encode),
           bytes / median(t.decode), bytes / median(t.copy));
}

static float *numbers(size_t n)
{
    float *x = aligned_alloc(64, n * sizeof(*x));

    CHECK(x != NULL);
    memset(x, 0, n * sizeof(*x)); /* every page exists */
    return x;
}

int main(void)
{
    struct side s = { .x = numbers(N), .y = numbers(N), .left = numbers(N), .code = (uint8_t *)numbers(N),
                      .p = numbers(4 * SQUARE), .q = numbers(4 * SQUARE) };

    for (size_t i = 0; i < N; i++)
        s.x[i] = (float)((i * 2654435761u >> 8 & 0xffff) - 32768.0) / 4096;
    for (int kind = CODE_BFLOAT16; kind <= CODE_POWER_SGD; kind++) {
        bool is_top_k = kind == CODE_TOP_K, keeps = code_keeps_residuals((enum code_kind)kind);

        s.kind = (enum code_kind)kind;
        s.encode = is_top_k ? encode_top_k : keeps ? encode_power_sgd : encode_blocks;
        s.decode = is_top_k ? decode_top_k : keeps ? decode_power_sgd : decode_blocks;
        memset(s.left, 0, N * sizeof(*s.left));
        measure(&s);
    }
    free(s.x);
    free(s.y);
    free(s.left);
    free(s.code);
    free(s.p);
    free(s.q);
    return 0;
}
