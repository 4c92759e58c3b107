#include "op/shape/copy.h"

#include <string.h>

#include "base/check.h"
#include "op/half.h"

enum { BLOCK = 32 }; /* side of a square block that fits the L1 cache for both sides */

void copy_add_axis(struct copy *c, int64_t size, ptrdiff_t from, ptrdiff_t to)
{
    CHECK(c->n < COPY_AXES);
    c->is_empty = c->is_empty || size == 0;
    if (size > 1)
        c->axis[c->n++] = (struct copy_axis){ (size_t)size, from, to };
}

static size_t magnitude(ptrdiff_t step)
{
    return (size_t)(step < 0 ? -step : step);
}

/* Sorts axes by their strides in `to`, the largest first. Then the axis with the smallest stride in
 * `from` becomes the last but one, so that the two innermost axes are the contiguous ones of both
 * sides. */
void copy_finish(struct copy *c)
{
    uint32_t i, k, n = 0, least = 0;

    if (c->is_empty)
        c->n = 0;
    for (i = 1; i < c->n; i++) /* insertion sort: there are few axes */
        for (k = i; k > 0 && magnitude(c->axis[k - 1].to) < magnitude(c->axis[k].to); k--) {
            struct copy_axis x = c->axis[k];

            c->axis[k] = c->axis[k - 1];
            c->axis[k - 1] = x;
        }
    for (i = 0; i < c->n; i++) {
        struct copy_axis *last = n > 0 ? &c->axis[n - 1] : NULL, next = c->axis[i];

        if (last != NULL && last->from == (ptrdiff_t)next.size * next.from &&
            last->to == (ptrdiff_t)next.size * next.to) {
            next.size *= last->size;
            *last = next;
        } else {
            c->axis[n++] = next;
        }
    }
    c->n = n;
    for (i = 1; i < n; i++)
        if (magnitude(c->axis[i].from) < magnitude(c->axis[least].from))
            least = i;
    if (n > 2 && least < n - 2) {
        struct copy_axis x = c->axis[least];

        memmove(&c->axis[least], &c->axis[least + 1], (n - 2 - least) * sizeof(x));
        c->axis[n - 2] = x;
    }
}

struct copy copy_back(const struct copy *c)
{
    struct copy b = { .from = c->to, .to = c->from, .is_empty = c->is_empty };
    uint32_t i;

    for (i = 0; i < c->n; i++)
        copy_add_axis(&b, (int64_t)c->axis[i].size, c->axis[i].to, c->axis[i].from);
    copy_finish(&b);
    return b;
}

/* Defines the copy of two axes, outer `a` and inner `b`, in square blocks. */
#define SET(y_, x_) (x_)
#define ADD(y_, x_) ((y_) + (x_))
#define ADD_HALF(y_, x_) float_to_bfloat16(float_of_bfloat16(y_) + float_of_bfloat16(x_))
#define COPY_TYPE(name_, type_, value_)                                                            \
    static void name_(const struct copy_axis *a, const struct copy_axis *b, const void *vx,        \
                      void *vy)                                                                    \
    {                                                                                              \
        const type_ *x = vx;                                                                       \
        type_ *y = vy;                                                                             \
        size_t i, k, at, to, bi, bk;                                                               \
                                                                                                   \
        for (at = 0; at < a->size; at += BLOCK) {                                                  \
            bi = a->size - at < BLOCK ? a->size : at + BLOCK;                                      \
            for (to = 0; to < b->size; to += BLOCK) {                                              \
                bk = b->size - to < BLOCK ? b->size : to + BLOCK;                                  \
                for (i = at; i < bi; i++)                                                          \
                    for (k = to; k < bk; k++) {                                                    \
                        type_ *v = &y[(ptrdiff_t)i * a->to + (ptrdiff_t)k * b->to];                \
                                                                                                   \
                        *v = value_(*v, x[(ptrdiff_t)i * a->from + (ptrdiff_t)k * b->from]);       \
                    }                                                                              \
            }                                                                                      \
        }                                                                                          \
    }
COPY_TYPE(copy_8, uint8_t, SET)
COPY_TYPE(copy_16, uint16_t, SET)
COPY_TYPE(copy_32, uint32_t, SET)
COPY_TYPE(copy_64, uint64_t, SET)
COPY_TYPE(copy_add, float, ADD)
COPY_TYPE(copy_add_half, uint16_t, ADD_HALF)

enum mode { COPY, COPY_ADD, COPY_ADD_HALF };

static void copy_lines(const struct copy_axis *a, const struct copy_axis *b, const char *x, char *y,
                       size_t size, enum mode mode)
{
    size_t i;

    for (i = 0; i < a->size; i++) {
        struct tensor to = { .dtype = mode == COPY_ADD ? TENSOR_F32 : TENSOR_BF16, .data = y };

        if (mode != COPY)
            op_store_as(&to, x, b->size, 1.0f, true);
        else
            memcpy(y, x, b->size * size);
        x += a->from * (ptrdiff_t)size;
        y += a->to * (ptrdiff_t)size;
    }
}

static void copy_plane(const struct copy_axis *a, const struct copy_axis *b, const char *x, char *y,
                       size_t size, enum mode mode)
{
    if (b->from == 1 && b->to == 1)
        copy_lines(a, b, x, y, size, mode);
    else if (mode != COPY)
        (mode == COPY_ADD ? copy_add : copy_add_half)(a, b, x, y);
    else
        (size == 1 ? copy_8 : size == 2 ? copy_16 : size == 4 ? copy_32 : copy_64)(a, b, x, y);
}

static void walk(const struct copy *c, const char *x, char *y, size_t size, enum mode mode)
{
    static const struct copy_axis one = { 1, 1, 1 };
    uint32_t outer = c->n > 2 ? c->n - 2 : 0, k;
    const struct copy_axis *b = c->n > 0 ? &c->axis[c->n - 1] : &one;
    const struct copy_axis *a = c->n > 1 ? &c->axis[c->n - 2] : &one;
    size_t index[COPY_AXES] = { 0 };

    if (c->is_empty)
        return;
    x += c->from * (ptrdiff_t)size;
    y += c->to * (ptrdiff_t)size;
    for (;;) {
        copy_plane(a, b, x, y, size, mode);
        for (k = outer; k-- > 0;) {
            const struct copy_axis *o = &c->axis[k];

            x += o->from * (ptrdiff_t)size;
            y += o->to * (ptrdiff_t)size;
            if (++index[k] < o->size)
                break;
            index[k] = 0;
            x -= (ptrdiff_t)o->size * o->from * (ptrdiff_t)size;
            y -= (ptrdiff_t)o->size * o->to * (ptrdiff_t)size;
        }
        if (k == UINT32_MAX)
            return;
    }
}

void copy_run(const struct copy *c, const void *x, void *y, size_t size)
{
    walk(c, x, y, size, COPY);
}

void copy_run_add(const struct copy *c, const void *x, void *y)
{
    walk(c, x, y, sizeof(float), COPY_ADD);
}

void copy_run_add_half(const struct copy *c, const void *x, void *y)
{
    walk(c, x, y, sizeof(uint16_t), COPY_ADD_HALF);
}
