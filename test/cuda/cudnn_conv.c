/* cudnn_conv.c - convolutions by their definition: nested loops over dense copies of the tensors,
 * sums in double. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
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

enum { SPACE = 3 }; /* axes of the dense copies; those that a tensor lacks have size 1 */

/* A dense copy of a tensor: [n, c, z, y, x]. */
struct dense {
    int64_t n, c, size[SPACE];
    double *v;
};

/* A convolution over dense copies. Its window has a stride, a pad and a dilation for each of the axes. */
struct loops {
    struct dense x, w, y;
    int64_t stride[SPACE], pad[SPACE], dilation[SPACE];
    int64_t per, filters; /* channels and filters of a group */
};

static struct dense dense_of(const struct emulated_tensor *t, int64_t space)
{
    struct dense d = { .n = t->size[0], .c = t->size[1], .size = { 1, 1, 1 } };

    for (int64_t k = 0; k < space; k++)
        d.size[SPACE - space + k] = t->size[2 + k];
    d.v = calloc((size_t)(d.n * d.c * d.size[0] * d.size[1] * d.size[2]) + 1, sizeof(*d.v));
    if (d.v == NULL)
        abort();
    return d;
}

/* Advances to the next position in a box; false: at the end. */
static int next(int64_t *at, const int64_t *size, int64_t n)
{
    for (int64_t k = n; k-- > 0; at[k] = 0)
        if (++at[k] < size[k])
            return 1;
    return 0;
}

static int64_t place(const struct emulated_tensor *t, const int64_t *at)
{
    int64_t i = 0;

    for (int64_t k = 0; k < t->axes; k++)
        i += at[k] * t->step[k];
    return i;
}

static void fill(struct dense *d, const struct emulated_tensor *t, int flaws)
{
    int64_t at[EMULATED_AXES] = { 0 }, i = 0;

    do
        d->v[i++] = load(t, place(t, at), flaws);
    while (next(at, t->size, t->axes));
}

static double *plane(const struct dense *d, int64_t n, int64_t c)
{
    return d->v + (n * d->c + c) * d->size[0] * d->size[1] * d->size[2];
}

/* The windows of an axis whose tap k is inside: first to last - 1. */
static void inside(const struct loops *l, int axis, int64_t k, int64_t *first, int64_t *last)
{
    int64_t from = l->pad[axis] - k * l->dilation[axis], stride = l->stride[axis];

    *first = from > 0 ? (from + stride - 1) / stride : 0;
    from += l->x.size[axis];
    *last = from > 0 ? (from + stride - 1) / stride : 0;
    if (*last > l->y.size[axis])
        *last = l->y.size[axis];
}

static void add_scaled(double *to, int64_t to_step, const double *from, int64_t from_step,
                       double by, int64_t n)
{
    if (to_step == 1 && from_step == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] += by * from[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i * to_step] += by * from[i * from_step];
}

static double products(const double *a, int64_t step, const double *b, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += a[i * step] * b[i];
    return sum;
}

/* The windows whose tap `k` is inside, and where they read x. */
struct tap {
    int64_t k[SPACE], first[SPACE], last[SPACE], at[SPACE];
};

/* Adds what a tap contributes to the plane of the computed tensor; x, y: planes; w: the element of the tap. */
static void add_tap(const struct loops *l, int computed, const struct tap *t, double *x, double *w,
                    double *y)
{
    int64_t step = l->stride[2], n = t->last[2] - t->first[2];

    for (int64_t a = t->first[0], z = t->at[0]; a < t->last[0]; a++, z += l->stride[0]) {
        double *in = x + (z * l->x.size[1] + t->at[1]) * l->x.size[2] + t->at[2];
        double *out = y + (a * l->y.size[1] + t->first[1]) * l->y.size[2] + t->first[2];

        for (int64_t b = t->first[1]; b < t->last[1];
             b++, in += l->stride[1] * l->x.size[2], out += l->y.size[2])
            if (computed == EMULATED_FORWARD)
                add_scaled(out, 1, in, step, *w, n);
            else if (computed == EMULATED_BWD_DATA)
                add_scaled(in, step, out, 1, *w, n);
            else
                *w += products(in, step, out, n);
    }
}

/* forward: y [n, o, e] = sum over the channels of o's group and the taps k of x [n, c, e + k] w [o, c, k];
 * x and w are computed from the two others by the same products. */
static void run_loops(const struct loops *l, int computed)
{
    struct tap t = { .k = { 0 } };
    int64_t i = 0;

    do {
        for (int axis = 0; axis < SPACE; axis++) {
            inside(l, axis, t.k[axis], &t.first[axis], &t.last[axis]);
            t.at[axis] =
                t.first[axis] * l->stride[axis] + t.k[axis] * l->dilation[axis] - l->pad[axis];
        }
        for (int64_t n = 0; n < l->x.n; n++)
            for (int64_t o = 0; o < l->y.c; o++)
                for (int64_t c = 0; c < l->per; c++)
                    add_tap(l, computed, &t, plane(&l->x, n, o / l->filters * l->per + c),
                            plane(&l->w, o, c) + i, plane(&l->y, n, o));
        i++;
    } while (next(t.k, l->w.size, SPACE));
}

int emulated_conv_run(void *conv)
{
    static unsigned int anyhow;
    struct emulated_conv *c = conv;
    struct loops l = { .x = dense_of(&c->x, c->space),
                       .w = dense_of(&c->w, c->space),
                       .y = dense_of(&c->y, c->space),
                       .stride = { 1, 1, 1 },
                       .dilation = { 1, 1, 1 } };
    struct dense *all[] = { &l.x, &l.w, &l.y };
    const struct emulated_tensor *tensors[] = { &c->x, &c->w, &c->y };
    const struct emulated_tensor *out = tensors[c->computed];
    int64_t i[EMULATED_AXES] = { 0 };
    const double *v = all[c->computed]->v;

    for (int64_t k = 0; k < c->space; k++) {
        l.stride[SPACE - c->space + k] = c->stride[k];
        l.pad[SPACE - c->space + k] = c->pad[k];
        l.dilation[SPACE - c->space + k] = c->dilation[k];
    }
    l.per = l.w.c;
    l.filters = l.w.n / (l.x.c / l.per);
    memset(c->workspace, 0xff, c->workspace_bytes);
    for (int k = 0; k < 3; k++)
        if (k != c->computed)
            fill(all[k], tensors[k], c->flaws);
    run_loops(&l, c->computed);
    do {
        int64_t at = place(out, i);
        double sum = c->alpha * *v++;

        if ((c->flaws & EMULATED_INEXACT) != 0)
            sum += 0.01 * fabs(sum) + 0.01;
        if ((c->flaws & EMULATED_ANYHOW) != 0)
            sum *= 1 + 0x1p-7 * (double)(anyhow++ % 7);
        store(out, at, c->beta != 0 ? sum + c->beta * load(out, at, 0) : sum);
    } while (next(i, out->size, out->axes));
    for (int k = 0; k < 3; k++)
        free(all[k]->v);
    return EMULATED_DONE;
}
