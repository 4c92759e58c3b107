/* move_kit.h - verifies ops that only move data, with a function from a position in output 0 to one
 * in an input. Test programs include it after cmocka. */
#ifndef TEST_OP_MOVE_KIT_H
#define TEST_OP_MOVE_KIT_H

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"
#include "harness/op_oracle.h"

/* `to` and `from` are indices along each axis. Returns the input, or -1 for the fill value 0. */
typedef int from_fn(const void *arg, const int64_t *to, int64_t *from);

static void unravel(const struct shape *s, size_t i, int64_t *at)
{
    uint32_t k;

    for (k = s->rank; k-- > 0; i /= (size_t)s->dim[k])
        at[k] = (int64_t)(i % (size_t)s->dim[k]);
}

static size_t ravel(const struct shape *s, const int64_t *at)
{
    size_t i = 0;
    uint32_t k;

    for (k = 0; k < s->rank; k++) {
        assert_true(at[k] >= 0 && at[k] < s->dim[k]);
        i = i * (size_t)s->dim[k] + (size_t)at[k];
    }
    return i;
}

static void expect_moved(const struct gradcheck_case *gc, const struct shape *shape, from_fn *from,
                         const void *arg)
{
    struct gradcheck_result r;
    struct err err = { 0 };
    char got[192], want[192];
    size_t n, i;

    if (gradcheck_forward(gc, &r, &err) < 0)
        fail_msg("%s: %s", gc->op, err.text);
    if (!shape_equal(&r.out[0].shape, shape))
        fail_msg("%s: shape %s, expected %s", gc->op,
                 shape_print(&r.out[0].shape, got, sizeof(got)),
                 shape_print(shape, want, sizeof(want)));
    assert_int_equal(r.out[0].dtype, r.in[0].dtype);
    n = (size_t)tensor_elements(&r.out[0]);
    for (i = 0; i < n; i++) {
        int64_t to[TENSOR_MAX_RANK], at[TENSOR_MAX_RANK];
        double is = oracle_at(&r.out[0], i), should = 0;
        int which;

        unravel(shape, i, to);
        which = from(arg, to, at);
        if (which >= 0)
            should = oracle_at(&r.in[which], ravel(&r.in[which].shape, at));
        if (is != should)
            fail_msg("%s: element %zu of %s is %g, expected %g", gc->op, i,
                     shape_print(shape, got, sizeof(got)), is, should);
    }
    gradcheck_free(&r);
}

/* Checks every element size, both layouts if the op supports them, and the gradients. */
static void check_moved(struct gradcheck_case *gc, uint32_t n_data, const struct shape *shape,
                        from_fn *from, const void *arg)
{
    static const enum tensor_dtype types[] = { TENSOR_U8, TENSOR_I32, TENSOR_I64, TENSOR_F32 };
    size_t t;
    uint32_t k;

    for (t = 0; t < COUNT_OF(types); t++) {
        for (k = 0; k < n_data; k++) {
            gc->in[k].dtype = types[t];
            gc->in[k].lo = types[t] == TENSOR_F32 ? -1 : 1;
            gc->in[k].hi = types[t] == TENSOR_F32 ? 1 : 100;
        }
        gc->layout = TENSOR_PLAIN;
        expect_moved(gc, shape, from, arg);
        gc->layout = TENSOR_CHANNELS_LAST;
        expect_moved(gc, shape, from, arg);
        gc->layout = TENSOR_PLAIN;
    }
    gradcheck_run(gc);
}

#define INTS(name_, ...)                                                                           \
    { .name = (name_), .type = OP_ATTR_INTS, .ints = (const int64_t[]){ __VA_ARGS__ },             \
      .n = sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t) }
#define INT(name_, i_) { .name = (name_), .type = OP_ATTR_INT, .i = (i_) }
#define STRING(name_, s_) { .name = (name_), .type = OP_ATTR_STRING, .s = (s_) }

/* A constant list of integers. */
static struct gradcheck_tensor list(const int64_t *values, int64_t n)
{
    return (struct gradcheck_tensor){ .dtype = TENSOR_I64, .shape = GRADCHECK_SHAPE(n),
                                      .data = values, .constant = true };
}

#endif
