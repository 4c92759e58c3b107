/* fill.c - see fill.h. */
#include "tensor/fill.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"

/* FNV-1a. */
static uint64_t hash(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (; *name != '\0'; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return h;
}

struct table_fill table_fill_of(enum table_fill_kind kind, double scale, uint64_t seed,
                                const char *name)
{
    uint64_t h = hash(name);

    /* other random numbers of the job use its seed itself */
    return (struct table_fill){ .kind = kind,
                                .stream = (uint32_t)h,
                                .seed = seed ^ UINT64_C(0x7461626c65207365) ^ h >> 32 << 16,
                                .scale = scale };
}

/* The natural logarithm of x in (0, 1]. log() may differ in the last bit between C libraries. */
static double log_of(double x)
{
    int e;
    double m = frexp(x, &e), s, square, sum = 0; /* exact; m in [1/2, 1) */

    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    s = (m - 1) / (m + 1); /* log m = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172 */
    square = s * s;
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * square + 1.0 / k;
    return 2 * s * sum + e * 0.69314718055994531;
}

/* The inverse of the standard normal distribution, 2^-33 <= p <= 1 - 2^-33, to 7 digits: Wichura, "Algorithm AS
 * 241", Applied Statistics 37 (1988), PPND7. */
static double normal(double p)
{
    double q = p - 0.5, r, x;

    if (fabs(q) <= 0.425) {
        r = 0.180625 - q * q;
        return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
               (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1);
    }
    r = sqrt(-log_of(q < 0 ? p : 1 - p)) - 1.6;
    x = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1);
    return q < 0 ? -x : x;
}

static float value(const struct table_fill *f, uint32_t word)
{
    if (f->kind == TABLE_UNIFORM) /* [-1, 1) in steps of 2^-31, which a double contains exactly */
        return (float)(f->scale * ((double)word / 2147483648.0 - 1));
    return (float)(f->scale * normal(((double)word + 0.5) / 4294967296.0));
}

void table_fill_rows(const struct table_fill *f, uint32_t width, uint64_t first, uint64_t n,
                     float *out)
{
    CHECK(f->kind != TABLE_FROM_FILE);
    if (f->kind == TABLE_ZEROS) {
        memset(out, 0, (size_t)n * width * sizeof(*out));
        return;
    }
    for (uint64_t i = 0; i < n; i++) { /* first + n may overflow: an id is any number */
        uint64_t row = first + i;
        const struct rng_key key = { .seed = f->seed,
                                     .step = (uint32_t)row,
                                     .lane = (uint32_t)(row >> 32),
                                     .stream = f->stream };

        for (uint32_t c = 0; c < width; c += 4) {
            uint32_t words[4];

            rng_block(&key, c / 4, words);
            for (uint32_t k = 0; k < 4 && c + k < width; k++)
                *out++ = value(f, words[k]);
        }
    }
}
