/* bench_code - the speed of the codes of gradients on one core, beside memcpy: GB of float32 per second. The vector
 * is larger than the caches, as a gradient is.
 *
 * Prints for each code "NAME encode X decode Y copy Z". The copy is measured in the same round; medians. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "code/code.h"

enum { BLOCKS = 1 << 16, N = BLOCKS * CODE_BLOCK, ROUNDS = 9 }; /* 64 MiB */

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

static void measure(enum code_kind kind, const float *x, float *y, uint8_t *code)
{
    const struct code_key key = { .seed = 1, .step = 2, .place = 3 };
    const double bytes = (double)N * sizeof(float) / 1e9;
    struct times t;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t begin = clock_ns();

        code_encode(kind, &key, 0, x, BLOCKS, code);
        t.encode[i] = seconds_since(begin);
        begin = clock_ns();
        code_decode(kind, code, BLOCKS, y);
        t.decode[i] = seconds_since(begin);
        begin = clock_ns();
        memcpy(y, x, N * sizeof(*y));
        t.copy[i] = seconds_since(begin);
    }
    printf("%s encode %.3f decode %.3f copy %.3f\n", code_name(kind), bytes / median(t.encode),
           bytes / median(t.decode), bytes / median(t.copy));
}

int main(void)
{
    float *x = aligned_alloc(64, N * sizeof(*x)), *y = aligned_alloc(64, N * sizeof(*y));
    uint8_t *code = aligned_alloc(64, N * sizeof(float));

    CHECK(x != NULL && y != NULL && code != NULL);
    for (size_t i = 0; i < N; i++)
        x[i] = (float)((i * 2654435761u >> 8 & 0xffff) - 32768.0) / 4096;
    memcpy(y, x, N * sizeof(*y)); /* every page exists */
    memset(code, 1, N * sizeof(float));
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++)
        measure((enum code_kind)kind, x, y, code);
    free(x);
    free(y);
    free(code);
    return 0;
}
