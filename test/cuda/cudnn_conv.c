/* cudnn_conv.c - convolutions by their definition: nested loops over strided tensors, sums in
 * double. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "cuda/cudnn_priv.h"
#include "cuda/emulator.h"

/* ---- numbers ---- */

size_t emulated_type_bytes(cudnnDataType_t type)
{
    switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_BOOLEAN: return 1;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    default: return 0;
    }
}

/* A small format with sign, exponent and fraction: number of fraction bits, bias of the
 * exponent. */
static double small_to_double(uint16_t bits, int fraction, int bias)
{
    int exponent = (bits & 0x7fff) >> fraction, top = 0x7fff >> fraction;
    double m = (double)(bits & ((1 << fraction) - 1)) / (double)(1 << fraction);
    double v = exponent == top ? (m != 0 ? NAN : INFINITY)
               : exponent == 0 ? ldexp(m, 1 - bias)
                               : ldexp(1 + m, exponent - bias);

    return bits & 0x8000 ? -v : v;
}

static uint16_t double_to_small(double v, int fraction, int bias)
{
    int top = 0x7fff >> fraction, e;
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double scaled;

    if (isnan(v))
        return 0x7fff;
    v = fabs(v);
    (void)frexp(v, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1; /* the last digit has the weight 2^(e - fraction) */
    scaled = isinf(v) ? v : rint(ldexp(v, fraction - e));
    if (scaled >= ldexp(2, fraction)) {
        scaled /= 2;
        e++;
    }
    if (isinf(v) || e > top - 1 - bias)
        return sign | (uint16_t)(top << fraction);
    if (scaled < ldexp(1, fraction)) /* subnormal */
        return sign | (uint16_t)scaled;
    return sign | (uint16_t)(((e + bias) << fraction) + ((int)scaled - (1 << fraction)));
}

/* All values: [0] float16, [1] bfloat16. */
static float smalls[2][1 << 16];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_smalls(void)
{
    for (uint32_t i = 0; i < 1 << 16; i++) {
        smalls[0][i] = (float)small_to_double((uint16_t)i, 10, 15);
        smalls[1][i] = (float)small_to_double((uint16_t)i, 7, 127);
    }
}

static double load(const struct emulated_tensor *t, int64_t i, int flaws)
{
    float f;
    uint32_t bits;
    uint16_t small;

    if (t->type == CUDNN_DATA_FLOAT) {
        memcpy(&bits, (const char *)t->at + i * 4, 4);
        if ((flaws & EMULATED_TRUNCATED) != 0)
            bits &= ~0x1fffu;
        memcpy(&f, &bits, 4);
        return (double)f;
    }
    memcpy(&small, (const char *)t->at + i * 2, 2);
    pthread_once(&once, fill_smalls);
    return (double)smalls[t->type == CUDNN_DATA_HALF ? 0 : 1][small];
}

static void store(const struct emulated_tensor *t, int64_t i, double v)
{
    float f = (float)v;
    uint16_t small;

    if (t->type == CUDNN_DATA_FLOAT) {
        memcpy((char *)t->at + i * 4, &f, 4);
        return;
    }
    small = t->type == CUDNN_DATA_HALF ? double_to_small((double)f, 10, 15)
                                       : double_to_small((double)f, 7, 127);
    memcpy((char *)t->at + i * 2, &small, 2);
}

double emulated_load(const struct emulated_tensor *t, int64_t i)
{
    return load(t, i, 0);
}

void emulated_store(const struct emulated_tensor *t, int64_t i, double v)
{
    store(t, i, v);
}

double emulated_round(cudnnDataType_t type, double v)
{
    pthread_once(&once, fill_smalls);
    return type == CUDNN_DATA_HALF ? (double)smalls[0][double_to_small((double)(float)v, 10, 15)]
           : type == CUDNN_DATA_BFLOAT16
               ? (double)smalls[1][double_to_small((double)(float)v, 7, 127)]
               : (double)(float)v;
}

/* ---- loops ---- */

/* Index of the element of t at [a, b, s..], with `space` spatial axes. */
static int64_t place(const struct emulated_tensor *t, int64_t a, int64_t b, const int64_t *s,
                     int64_t space)
{
    int64_t at = a * t->step[0] + b * t->step[1];

    for (int64_t k = 0; k < space; k++)
        at += s[k] * t->step[2 + k];
    return at;
}

/* Advances to the next position in a box; false: at the end. */
static int next(int64_t *at, const int64_t *size, int64_t n)
{
    for (int64_t k = n; k-- > 0; at[k] = 0)
        if (++at[k] < size[k])
            return 1;
    return 0;
}

/* Computes the position in x that tap k of window e reads; 0: outside. */
static int tap(const struct emulated_conv *c, const int64_t *e, const int64_t *k, int64_t *at)
{
    for (int64_t i = 0; i < c->space; i++) {
        at[i] = e[i] * c->stride[i] + k[i] * c->dilation[i] - c->pad[i];
        if (at[i] < 0 || at[i] >= c->x.size[2 + i])
            return 0;
    }
    return 1;
}

/* Computes the window whose tap k reads x at `at`; 0: none. */
static int window(const struct emulated_conv *c, const int64_t *at, const int64_t *k, int64_t *e)
{
    for (int64_t i = 0; i < c->space; i++) {
        int64_t from = at[i] + c->pad[i] - k[i] * c->dilation[i];

        e[i] = from / c->stride[i];
        if (from < 0 || from % c->stride[i] != 0 || e[i] >= c->y.size[2 + i])
            return 0;
    }
    return 1;
}

/* Sum of n products of elements with the given strides. */
static double products(const struct emulated_tensor *a, int64_t i, int64_t step_a,
                       const struct emulated_tensor *b, int64_t j, int64_t step_b, int64_t n,
                       int flaws)
{
    const float *x = a->at, *y = b->at;
    double sum = 0;

    if (a->type == CUDNN_DATA_FLOAT && b->type == CUDNN_DATA_FLOAT && flaws == 0) {
        for (int64_t k = 0; k < n; k++, i += step_a, j += step_b)
            sum += (double)x[i] * (double)y[j];
        return sum;
    }
    for (int64_t k = 0; k < n; k++, i += step_a, j += step_b)
        sum += load(a, i, flaws) * load(b, j, flaws);
    return sum;
}

/* y [n, o, e] = sum over the taps and the channels of o's group */
static double forward(const struct emulated_conv *c, const int64_t *i)
{
    int64_t per = c->w.size[1], first = i[1] / (c->w.size[0] / (c->x.size[1] / per)) * per;
    int64_t k[3] = { 0 }, at[3];
    double sum = 0;

    do
        if (tap(c, i + 2, k, at))
            sum += products(&c->x, place(&c->x, i[0], first, at, c->space), c->x.step[1], &c->w,
                            place(&c->w, i[1], 0, k, c->space), c->w.step[1], per, c->flaws);
    while (next(k, c->w.size + 2, c->space));
    return sum;
}

/* dx [n, c, at] = sum over the taps that read it and the filters of c's group */
static double bwd_data(const struct emulated_conv *c, const int64_t *i)
{
    int64_t per = c->w.size[1], filters = c->w.size[0] / (c->x.size[1] / per);
    int64_t first = i[1] / per * filters, k[3] = { 0 }, e[3];
    double sum = 0;

    do
        if (window(c, i + 2, k, e))
            sum += products(&c->y, place(&c->y, i[0], first, e, c->space), c->y.step[1], &c->w,
                            place(&c->w, first, i[1] % per, k, c->space), c->w.step[0], filters,
                            c->flaws);
    while (next(k, c->w.size + 2, c->space));
    return sum;
}

/* dw [o, c, k] = sum over images and windows */
static double bwd_filter(const struct emulated_conv *c, const int64_t *i)
{
    int64_t per = c->w.size[1], channel = i[0] / (c->w.size[0] / (c->x.size[1] / per)) * per + i[1];
    int64_t e[3] = { 0 }, at[3];
    double sum = 0;

    do
        if (tap(c, e, i + 2, at))
            sum +=
                products(&c->x, place(&c->x, 0, channel, at, c->space), c->x.step[0], &c->y,
                         place(&c->y, 0, i[0], e, c->space), c->y.step[0], c->x.size[0], c->flaws);
    while (next(e, c->y.size + 2, c->space));
    return sum;
}

int emulated_conv_run(void *conv)
{
    static double (*const sums[])(const struct emulated_conv *c, const int64_t *i) = {
        bwd_data, bwd_filter, forward,
    };
    static unsigned int anyhow;
    struct emulated_conv *c = conv;
    const struct emulated_tensor *out = c->computed == EMULATED_BWD_DATA     ? &c->x
                                        : c->computed == EMULATED_BWD_FILTER ? &c->w
                                                                             : &c->y;
    int64_t i[EMULATED_AXES] = { 0 };

    memset(c->workspace, 0xff, c->workspace_bytes);
    do {
        int64_t at = place(out, i[0], i[1], i + 2, c->space);
        double v = c->alpha * sums[c->computed](c, i);

        if ((c->flaws & EMULATED_INEXACT) != 0)
            v += 0.01 * fabs(v) + 0.01;
        if ((c->flaws & EMULATED_ANYHOW) != 0)
            v *= 1 + 0x1p-7 * (double)(anyhow++ % 7);
        store(out, at, c->beta != 0 ? v + c->beta * load(out, at, 0) : v);
    } while (next(i, out->size, out->axes));
    return EMULATED_DONE;
}
