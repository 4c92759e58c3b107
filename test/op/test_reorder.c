/* Reorder is the one op whose in and out differ in layout, so it is called here by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "op/op.h"

static const struct shape shapes[] = {
    { 3, { 2, 3, 5 } },     { 3, { 1, 1, 1 } },       { 4, { 2, 3, 4, 5 } },
    { 4, { 3, 17, 8, 8 } }, { 4, { 2, 64, 7, 7 } },   { 4, { 2, 1, 28, 28 } },
    { 4, { 4, 33, 1, 1 } }, { 5, { 2, 3, 2, 4, 3 } }, { 4, { 0, 3, 4, 5 } },
};

struct call {
    const struct op_def *def;
    struct tensor in, out, dout, din;
    const struct tensor *in_at[1], *out_at[1], *dout_at[1], *din_at[1];
    struct op_call c;
    size_t n;
};

static float *filled(size_t n, float first)
{
    float *v = aligned_alloc(64, (n * sizeof(*v) + 64) / 64 * 64);
    size_t i;

    assert_non_null(v);
    for (i = 0; i < n; i++)
        v[i] = isnan(first) ? NAN : first + (float)i;
    return v;
}

static void open_call(struct call *k, const struct shape *s, enum tensor_layout from,
                      enum tensor_layout to)
{
    struct err err = { 0 };
    struct op_plan p = { .node = "r", .training = true, .want_din = OP_IN(0), .n_in = 1, .n_out = 1,
                         .in = k->in_at, .out = &k->out };

    memset(k, 0, sizeof(*k));
    k->n = (size_t)shape_elements(s);
    k->def = p.def = op_find("trainerd", "Reorder", 1);
    assert_non_null(k->def);
    k->in = k->din = (struct tensor){ TENSOR_F32, from, *s, NULL };
    k->out = k->dout = (struct tensor){ TENSOR_F32, to, *s, NULL };
    k->in_at[0] = &k->in, k->out_at[0] = &k->out, k->dout_at[0] = &k->dout, k->din_at[0] = &k->din;
    if (k->def->cpu.plan(&p, &err) < 0)
        fail_msg("%s", err.text);
    k->in.data = filled(k->n, 1);
    k->out.data = filled(k->n, NAN);
    k->dout.data = filled(k->n, 500);
    k->din.data = filled(k->n, NAN);
    k->c = (struct op_call){ .state = p.state,
                             .n_in = 1,
                             .n_out = 1,
                             .in = k->in_at,
                             .out = k->out_at,
                             .dout = k->dout_at,
                             .din = k->din_at,
                             .scratch = filled(p.scratch_bytes / sizeof(float), NAN) };
}

static void close_call(struct call *k)
{
    k->def->cpu.free_state(k->c.state);
    free(k->c.scratch);
    free(k->in.data), free(k->out.data), free(k->dout.data), free(k->din.data);
}

/* Where element i of the plain order lies in a layout. */
static size_t place(const struct shape *s, enum tensor_layout layout, size_t i)
{
    size_t c = (size_t)s->dim[1], space = 1, k;

    if (layout == TENSOR_PLAIN)
        return i;
    for (k = 2; k < s->rank; k++)
        space *= (size_t)s->dim[k];
    return (i / (c * space) * space + i % space) * c + i / space % c;
}

static void a_tensor_goes_to_the_other_layout_and_its_gradient_comes_back(void **state)
{
    static const enum tensor_layout ways[][2] = { { TENSOR_PLAIN, TENSOR_CHANNELS_LAST },
                                                  { TENSOR_CHANNELS_LAST, TENSOR_PLAIN },
                                                  { TENSOR_PLAIN, TENSOR_PLAIN } };
    size_t i, w, e;

    (void)state;
    for (i = 0; i < COUNT_OF(shapes); i++)
        for (w = 0; w < COUNT_OF(ways); w++) {
            struct call k;
            struct err err = { 0 };
            float *in, *out, *dout, *din;

            open_call(&k, &shapes[i], ways[w][0], ways[w][1]);
            in = k.in.data, out = k.out.data, dout = k.dout.data, din = k.din.data;
            assert_int_equal(k.def->cpu.fwd(&k.c, &err), 0);
            assert_int_equal(k.def->cpu.bwd(&k.c, &err), 0);
            for (e = 0; e < k.n; e++) {
                size_t from = place(&shapes[i], ways[w][0], e),
                       to = place(&shapes[i], ways[w][1], e);

                assert_true(out[to] == in[from]);
                assert_true(din[from] == dout[to]);
                din[from] = (float)e;
            }
            k.c.din_add = OP_IN(0);
            assert_int_equal(k.def->cpu.bwd(&k.c, &err), 0);
            for (e = 0; e < k.n; e++)
                assert_true(din[place(&shapes[i], ways[w][0], e)] ==
                            (float)e + dout[place(&shapes[i], ways[w][1], e)]);
            k.c.din_add = 0;
            k.dout_at[0] = NULL;
            assert_int_equal(k.def->cpu.bwd(&k.c, &err), 0);
            for (e = 0; e < k.n; e++)
                assert_true(din[e] == 0.0f);
            close_call(&k);
        }
}

static void a_matrix_has_no_second_layout(void **state)
{
    struct tensor in = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, (int64_t)2, (int64_t)3), NULL }, out;
    const struct tensor *at = &in;
    struct op_infer f = { .def = op_find("trainerd", "Reorder", 1),
                          .node = "r",
                          .n_in = 1,
                          .in = &at,
                          .n_out = 1,
                          .out = &out };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(f.def->infer(&f, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "Reorder 'r': input 0 has shape [2, 3]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_goes_to_the_other_layout_and_its_gradient_comes_back),
        cmocka_unit_test(a_matrix_has_no_second_layout),
    };

    return cmocka_run_group_tests_name("op/reorder", tests, NULL, NULL);
}
