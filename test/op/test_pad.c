#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "op/move_kit.h"

/* ---- Pad ---- */

struct padded {
    struct shape in, out;
    const char *mode;
    int64_t pads[8];
};

static int from_padded(const void *arg, const int64_t *to, int64_t *from)
{
    const struct padded *p = arg;
    uint32_t k;

    for (k = 0; k < p->in.rank; k++) {
        int64_t n = p->in.dim[k], i = to[k] - p->pads[k];

        if (strcmp(p->mode, "edge") == 0)
            i = i < 0 ? 0 : i >= n ? n - 1 : i;
        while (strcmp(p->mode, "reflect") == 0 && (i < 0 || i >= n))
            i = n == 1 ? 0 : i < 0 ? -i : 2 * (n - 1) - i;
        while (strcmp(p->mode, "wrap") == 0 && (i < 0 || i >= n))
            i += i < 0 ? n : -n;
        if (i < 0 || i >= n)
            return -1;
        from[k] = i;
    }
    return 0;
}

static const struct padded pads[] = {
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(10), "constant", { 2, 3 } },
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(2), "constant", { -1, -2 } },
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(5), "constant", { -3, 3 } },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 7, 6), "constant",
      { 0, 0, 1, 0, 0, 0, 2, 1 } },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 7, 6), "reflect",
      { 0, 0, 1, 0, 0, 0, 2, 1 } },
    { GRADCHECK_SHAPE(2, 3, 4, 5), GRADCHECK_SHAPE(2, 3, 10, 10), "edge",
      { 0, 0, 5, 4, 0, 0, 1, 1 } },
    { GRADCHECK_SHAPE(2, 3, 4), GRADCHECK_SHAPE(3, 5, 8), "wrap", { 1, 0, 4, 0, 2, 0 } },
    { GRADCHECK_SHAPE(6), GRADCHECK_SHAPE(8), "reflect", { 5, -3 } },
    { GRADCHECK_SHAPE(0, 2), GRADCHECK_SHAPE(2, 2), "constant", { 1, 0, 1, 0 } },
    { GRADCHECK_SHAPE(0, 2), GRADCHECK_SHAPE(0, 5), "reflect", { 0, 1, 0, 2 } },
    /* longer than the axis */
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(10), "reflect", { 5, 0 } },
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(49), "reflect", { 27, 17 } },
    { GRADCHECK_SHAPE(5), GRADCHECK_SHAPE(49), "wrap", { 27, 17 } },
    { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(13, 12), "reflect", { 4, 3, 7, 6 } },
    { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(13, 12), "wrap", { 4, 3, 7, 6 } },
    { GRADCHECK_SHAPE(1, 2, 1), GRADCHECK_SHAPE(5, 9, 4), "reflect", { 3, 4, 0, 1, 3, 3 } },
    { GRADCHECK_SHAPE(1, 2, 3, 2), GRADCHECK_SHAPE(1, 2, 14, 9), "reflect",
      { 0, 0, 6, 3, 0, 0, 5, 4 } },
    { GRADCHECK_SHAPE(6), GRADCHECK_SHAPE(16), "wrap", { -2, 12 } },
    { { 0 }, { 0 }, "constant", { 0 } },
};

static void pad_extends_each_axis_by_mode(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(pads); i++) {
        const struct op_attr mode = STRING("mode", pads[i].mode);
        struct gradcheck_case gc = { .op = "Pad", .opset = 19, .attrs = &mode, .n_attrs = 1,
                                     .n_in = 2, .in = { { .shape = pads[i].in } } };

        gc.in[1] = list(pads[i].pads, 2 * pads[i].in.rank);
        check_moved(&gc, 1, &pads[i].out, from_padded, &pads[i]);
        gc.opset = 13;
        if (strcmp(pads[i].mode, "wrap") != 0)
            check_moved(&gc, 1, &pads[i].out, from_padded, &pads[i]);
    }
}

static void pad_uses_value_and_axes(void **state)
{
    static const float x[2] = { 1, 2 }, value = 7, y[8] = { 7, 1, 7, 7, 7, 2, 7, 7 };
    static const int64_t some[2] = { 1, 2 }, axes[1] = { -1 };
    const struct op_attr old[] = { INTS("pads", 0, 1, 0, 2),
                                   { .name = "value", .type = OP_ATTR_FLOAT, .f = 7 } };
    const struct shape out = GRADCHECK_SHAPE(2, 4);
    struct gradcheck_case gc = { .op = "Pad", .opset = 18, .n_in = 4,
                                 .in = { { .shape = GRADCHECK_SHAPE(2, 1), .data = x } } };

    (void)state;
    gc.in[1] = list(some, 2);
    gc.in[2] = (struct gradcheck_tensor){ .data = &value };
    gc.in[3] = list(axes, 1);
    oracle_floats(&gc, &out, y);
    gradcheck_run(&gc);
    gc = (struct gradcheck_case){ .op = "Pad", .opset = 10, .attrs = old, .n_attrs = 2, .n_in = 1,
                                  .in = { { .shape = GRADCHECK_SHAPE(2, 1), .data = x } } };
    oracle_floats(&gc, &out, y);
    gradcheck_run(&gc);
}

static void pad_with_invalid_pads_is_rejected(void **state)
{
    static const int64_t long_[2] = { 5, 0 }, many[12] = { 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9 };
    static const int64_t crossing[2] = { -3, -3 };
    static const int64_t absurd[2] = { INT64_MAX, 0 };
    static const struct op_attr reflect = STRING("mode", "reflect"), wrap = STRING("mode", "wrap");
    struct gradcheck_case gc = { .op = "Pad", .opset = 18, .attrs = &reflect, .n_attrs = 1,
                                 .n_in = 2, .in = { { .shape = GRADCHECK_SHAPE(5) } } };

    (void)state;
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(0);
    gc.in[1] = list(long_, 2);
    oracle_refused(&gc, ERR_INPUT, "axis 0 has no elements and cannot be padded by 5 and 0");
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(4, 4, 4, 4, 4, 4);
    gc.in[1] = list(many, 12);
    oracle_refused(&gc, ERR_UNSUPPORTED, "too many axes are padded by more than they have");
    gc.in[0].shape = (struct shape)GRADCHECK_SHAPE(5);
    gc.in[1] = list(long_, 1);
    oracle_refused(&gc, ERR_INPUT, "1 pads for 1 axes; expected two for each");
    gc.in[1] = list(absurd, 2);
    oracle_refused(&gc, ERR_INPUT, "is out of range");
    gc.n_attrs = 0;
    gc.in[1] = list(crossing, 2);
    oracle_refused(&gc, ERR_INPUT, "cannot be padded by -3 and -3");
    gc.attrs = &wrap;
    gc.n_attrs = 1;
    oracle_refused(&gc, ERR_INPUT, "mode is 'wrap'; expected constant, reflect or edge");
}

/* ---- Expand, Tile ---- */

struct repeated {
    struct shape in, out;
    int64_t list[8], n;
    bool tiles;
};

static int from_repeated(const void *arg, const int64_t *to, int64_t *from)
{
    const struct repeated *r = arg;
    uint32_t skip = r->out.rank - r->in.rank, k;

    for (k = 0; k < r->in.rank; k++)
        from[k] = to[skip + k] % r->in.dim[k];
    return 0;
}

static const struct repeated repeats[] = {
    { GRADCHECK_SHAPE(3, 1), GRADCHECK_SHAPE(2, 3, 6), { 2, 1, 6 }, 3, false },
    { GRADCHECK_SHAPE(3, 4), GRADCHECK_SHAPE(3, 4), { 1 }, 1, false },
    { { 0 }, GRADCHECK_SHAPE(101), { 101 }, 1, false },
    { GRADCHECK_SHAPE(1, 5), GRADCHECK_SHAPE(700, 5), { 700, 1 }, 2, false },
    { GRADCHECK_SHAPE(3, 1), GRADCHECK_SHAPE(3, 1100), { 3, 1100 }, 2, false },
    { { 0 }, GRADCHECK_SHAPE(9000), { 9000 }, 1, false },
    { GRADCHECK_SHAPE(1, 5, 1, 1), GRADCHECK_SHAPE(2, 5, 3, 4), { 2, 1, 3, 4 }, 4, false },
    { GRADCHECK_SHAPE(1, 3), GRADCHECK_SHAPE(0, 3), { 0, 3 }, 2, false },
    { GRADCHECK_SHAPE(3), GRADCHECK_SHAPE(12), { 4 }, 1, true },
    { GRADCHECK_SHAPE(2, 3, 2, 5), GRADCHECK_SHAPE(4, 3, 6, 10), { 2, 1, 3, 2 }, 4, true },
    { GRADCHECK_SHAPE(2, 1, 3), GRADCHECK_SHAPE(2, 7, 3), { 1, 7, 1 }, 3, true },
    { GRADCHECK_SHAPE(1, 2, 1, 2, 1, 2, 1, 2), GRADCHECK_SHAPE(2, 4, 2, 4, 2, 2, 2, 4),
      { 2, 2, 2, 2, 2, 1, 2, 2 }, 8, true },
    { GRADCHECK_SHAPE(2, 3), GRADCHECK_SHAPE(0, 3), { 0, 1 }, 2, true },
    { { 0 }, { 0 }, { 0 }, 0, true },
};

static void expand_and_tile_repeat_and_gradients_sum(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(repeats); i++) {
        struct gradcheck_case gc = { .op = repeats[i].tiles ? "Tile" : "Expand", .opset = 13,
                                     .n_in = 2, .in = { { .shape = repeats[i].in } } };

        gc.in[1] = list(repeats[i].list, repeats[i].n);
        check_moved(&gc, 1, &repeats[i].out, from_repeated, &repeats[i]);
    }
}

static void expand_and_tile_with_invalid_shapes_are_rejected(void **state)
{
    static const int64_t minus[1] = { -1 }, other[1] = { 4 }, many[9] = { 1 },
                         vast[3] = { INT64_MAX, INT64_MAX, 3 };
    struct gradcheck_case gc = { .op = "Expand", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(3) } } };

    (void)state;
    gc.in[1] = list(minus, 1);
    oracle_refused(&gc, ERR_INPUT, "the shape has -1 at 0");
    gc.in[1] = list(other, 1);
    oracle_refused(&gc, ERR_INPUT, "[3] and [4] do not broadcast");
    gc.in[1] = list(many, 9);
    oracle_refused(&gc, ERR_UNSUPPORTED, "9 dimensions; at most 8");
    gc.in[1] = list(vast, 3);
    oracle_refused(&gc, ERR_INPUT, "too many elements");
    gc.op = "Tile";
    oracle_refused(&gc, ERR_INPUT, "3 repeats for 1 dimensions");
    gc.in[1] = list(minus, 1);
    oracle_refused(&gc, ERR_INPUT, "repeats has -1 at 0");
}

/* ---- Squeeze, Unsqueeze ---- */

static int from_same(const void *arg, const int64_t *to, int64_t *from)
{
    const struct shape *const *both = arg; /* in, out: the bytes are unchanged */
    size_t i = ravel(both[1], to);

    unravel(both[0], i, from);
    return 0;
}

static const struct axes {
    const char *op;
    struct shape in, out;
    int64_t axes[3], n; /* n -1: no axes */
} axes[] = {
    { "Squeeze", GRADCHECK_SHAPE(1, 3, 1, 2), GRADCHECK_SHAPE(3, 2), { 0 }, -1 },
    { "Squeeze", GRADCHECK_SHAPE(1, 3, 1, 2), GRADCHECK_SHAPE(1, 3, 2), { -2 }, 1 },
    { "Squeeze", GRADCHECK_SHAPE(1, 1), { 0 }, { 0, 1 }, 2 },
    { "Unsqueeze", GRADCHECK_SHAPE(3, 2), GRADCHECK_SHAPE(1, 3, 2, 1), { 0, -1 }, 2 },
    { "Unsqueeze", GRADCHECK_SHAPE(3, 2), GRADCHECK_SHAPE(3, 1, 2), { 1 }, 1 },
    { "Unsqueeze", { 0 }, GRADCHECK_SHAPE(1), { 0 }, 1 },
};

static void squeeze_and_unsqueeze_change_axes_of_size_one(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(axes); i++) {
        const struct op_attr attr = { .name = "axes", .type = OP_ATTR_INTS, .ints = axes[i].axes,
                                      .n = (size_t)(axes[i].n < 0 ? 0 : axes[i].n) };
        const struct shape *both[2] = { &axes[i].in, &axes[i].out };
        struct gradcheck_case gc = { .op = axes[i].op, .opset = 11, .attrs = &attr,
                                     .n_attrs = axes[i].n > 0, .n_in = 1,
                                     .in = { { .shape = axes[i].in } } };

        check_moved(&gc, 1, &axes[i].out, from_same, both);
        gc.opset = 13;
        gc.n_attrs = 0;
        if (axes[i].n > 0)
            gc.in[gc.n_in++] = list(axes[i].axes, axes[i].n);
        check_moved(&gc, 1, &axes[i].out, from_same, both);
    }
}

static void squeeze_of_invalid_axis_is_rejected(void **state)
{
    static const int64_t one[1] = { 1 }, four[1] = { 4 }, twice[2] = { 0, -4 };
    struct gradcheck_case gc = { .op = "Squeeze", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(1, 3) } } };

    (void)state;
    gc.in[1] = list(one, 1);
    oracle_refused(&gc, ERR_INPUT, "axis 1 of [1, 3] is not of size 1");
    gc.in[1] = list(four, 1);
    oracle_refused(&gc, ERR_INPUT, "axis is 4; expected -2 to 1");
    gc.op = "Unsqueeze";
    oracle_refused(&gc, ERR_INPUT, "axis is 4; expected -3 to 2");
    gc.in[1] = list(twice, 2);
    oracle_refused(&gc, ERR_INPUT, "axis 0 is repeated");
}

/* ---- Trilu ---- */

struct triangle {
    int64_t upper, k;
};

static int from_triangle(const void *arg, const int64_t *to, int64_t *from)
{
    const struct triangle *t = arg;
    int64_t off = to[2] - to[1]; /* of [n, rows, cols] */

    memcpy(from, to, 3 * sizeof(*from));
    return (t->upper != 0 ? off >= t->k : off <= t->k) ? 0 : -1;
}

static void trilu_keeps_one_side_of_diagonal(void **state)
{
    static const struct shape shapes[] = { GRADCHECK_SHAPE(2, 4, 6), GRADCHECK_SHAPE(2, 5, 3),
                                           GRADCHECK_SHAPE(0, 3, 3), GRADCHECK_SHAPE(1, 1, 1) };
    static const int64_t ks[] = { 0, 1, -2, 7, -7, INT64_MAX, INT64_MIN };
    size_t i, s, k;

    (void)state;
    for (i = 0; i < 2; i++)
        for (s = 0; s < COUNT_OF(shapes); s++)
            for (k = 0; k < COUNT_OF(ks); k++) {
                const struct triangle t = { (int64_t)i, ks[k] };
                const struct op_attr upper = INT("upper", (int64_t)i);
                struct gradcheck_case gc = { .op = "Trilu", .opset = 14, .attrs = &upper,
                                             .n_attrs = 1, .n_in = 2,
                                             .in = { { .shape = shapes[s] },
                                                     { .dtype = TENSOR_I64, .data = &ks[k] } } };

                check_moved(&gc, 1, &shapes[s], from_triangle, &t);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pad_extends_each_axis_by_mode),
        cmocka_unit_test(pad_uses_value_and_axes),
        cmocka_unit_test(pad_with_invalid_pads_is_rejected),
        cmocka_unit_test(expand_and_tile_repeat_and_gradients_sum),
        cmocka_unit_test(expand_and_tile_with_invalid_shapes_are_rejected),
        cmocka_unit_test(squeeze_and_unsqueeze_change_axes_of_size_one),
        cmocka_unit_test(squeeze_of_invalid_axis_is_rejected),
        cmocka_unit_test(trilu_keeps_one_side_of_diagonal),
    };

    return cmocka_run_group_tests_name("op/pad", tests, NULL, NULL);
}
