/* LinearAttention against its definition, token by token in double, and against finite
 * differences. */
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
#include "harness/gradcheck.h"
#include "harness/op_rig.h"

struct trial {
    const char *rule;
    int64_t b, t, heads, key_heads, d, dv;
    bool has_past;
    int64_t decays, betas; /* columns; 0: input is absent */
    float scale;           /* 0: the default */
};

static const struct trial trials[] = {
    { "linear", 1, 1, 1, 1, 1, 1, false, 0, 0, 0 },
    { "linear", 2, 5, 4, 2, 3, 17, false, 0, 0, 0.5f },
    { "gated", 2, 6, 2, 2, 3, 4, true, 2, 0, 0 },
    { "gated", 1, 10, 2, 1, 5, 3, false, 5, 0, 0 },
    { "delta", 2, 5, 2, 2, 4, 3, true, 0, 2, 0 },
    { "delta", 1, 9, 4, 2, 3, 33, false, 0, 1, 0.25f },
    { "gated_delta", 2, 7, 4, 2, 4, 3, true, 8, 1, 0 },
    { "gated_delta", 1, 17, 3, 3, 3, 5, true, 3, 3, 0 },
};

struct made {
    struct op_attr attrs[4];
    struct gradcheck_case gc;
};

static void make(const struct trial *c, struct made *m)
{
    struct gradcheck_tensor *in = m->gc.in;

    memset(m, 0, sizeof(*m));
    m->attrs[0] = (struct op_attr){ .name = "q_num_heads", .type = OP_ATTR_INT, .i = c->heads };
    m->attrs[1] = (struct op_attr){ .name = "kv_num_heads", .type = OP_ATTR_INT, .i = c->key_heads };
    m->attrs[2] = (struct op_attr){ .name = "update_rule", .type = OP_ATTR_STRING, .s = c->rule };
    m->attrs[3] = (struct op_attr){ .name = "scale", .type = OP_ATTR_FLOAT, .f = c->scale };
    m->gc = (struct gradcheck_case){ .op = "LinearAttention", .opset = 27, .attrs = m->attrs, .n_attrs = 4,
                                     .n_in = 6, .n_out = 2, .seed = 3, .probes = 60 };
    in[0].shape = shape_of(3, c->b, c->t, c->heads * c->d);
    in[1].shape = shape_of(3, c->b, c->t, c->key_heads * c->d);
    in[2].shape = shape_of(3, c->b, c->t, c->key_heads * c->dv);
    in[3].shape = shape_of(4, c->b, c->key_heads, c->d, c->dv);
    in[3].absent = !c->has_past;
    in[4].shape = shape_of(3, c->b, c->t, c->decays);
    in[4].absent = c->decays == 0;
    in[4].lo = -1, in[4].hi = 0;
    in[5].shape = shape_of(3, c->b, c->t, c->betas);
    in[5].absent = c->betas == 0;
    in[5].lo = 0, in[5].hi = 1;
}

/* Computes one head of k and v: out [b, t, heads, dv] and last [b, key_heads, d, dv]. */
static void run_head(const struct trial *c, const struct gradcheck_result *r, int64_t b, int64_t h,
                     double *out, double *last)
{
    const float *q = r->in[0].data, *k = r->in[1].data, *v = r->in[2].data, *past = r->in[3].data,
                *decay = r->in[4].data, *beta = r->in[5].data;
    const int64_t d = c->d, dv = c->dv, shared = c->heads / c->key_heads,
                  each = c->decays / c->key_heads;
    const double scale = c->scale != 0 ? (double)c->scale : 1 / sqrt((double)d);
    double *s = calloc((size_t)(d * dv), sizeof(*s));

    assert_non_null(s);
    for (int64_t e = 0; c->has_past && e < d * dv; e++)
        s[e] = (double)past[(b * c->key_heads + h) * d * dv + e];
    for (int64_t t = 0; t < c->t; t++) {
        const int64_t at = b * c->t + t, head = at * c->key_heads + h;

        for (int64_t i = 0; c->decays > 0 && i < d; i++)
            for (int64_t j = 0; j < dv; j++)
                s[i * dv + j] *= exp((double)decay[head * each + (each > 1 ? i : 0)]);
        for (int64_t j = 0; j < dv; j++) {
            double seen = 0, u;

            for (int64_t i = 0; i < d; i++)
                seen += s[i * dv + j] * (double)k[head * d + i];
            u = (double)v[head * dv + j];
            if (c->betas > 0)
                u = (double)beta[c->betas > 1 ? head : at] * (u - seen);
            for (int64_t i = 0; i < d; i++)
                s[i * dv + j] += (double)k[head * d + i] * u;
        }
        for (int64_t n = h * shared; n < (h + 1) * shared; n++)
            for (int64_t j = 0; j < dv; j++) {
                double o = 0;

                for (int64_t i = 0; i < d; i++)
                    o += (double)q[(at * c->heads + n) * d + i] * s[i * dv + j];
                out[(at * c->heads + n) * dv + j] = scale * o;
            }
    }
    memcpy(last + (b * c->key_heads + h) * d * dv, s, (size_t)(d * dv) * sizeof(*s));
    free(s);
}

static void outputs_follow_definition(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(trials); i++) {
        const struct trial *c = &trials[i];
        const size_t n = (size_t)(c->b * c->t * c->heads * c->dv),
                     m = (size_t)(c->b * c->key_heads * c->d * c->dv);
        double *out = calloc(n, sizeof(*out)), *last = calloc(m, sizeof(*last));
        struct gradcheck_result r;
        struct err err = { 0 };
        struct made made;

        make(c, &made);
        if (gradcheck_forward(&made.gc, &r, &err) < 0)
            fail_msg("%s", err.text);
        for (int64_t b = 0; b < c->b; b++)
            for (int64_t h = 0; h < c->key_heads; h++)
                run_head(c, &r, b, h, out, last);
        gradcheck_near("output", r.out[0].data, out, n, 5e-6);
        gradcheck_near("present_state", r.out[1].data, last, m, 5e-6);
        gradcheck_free(&r);
        free(out);
        free(last);
    }
}

static void gradients_match_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(trials); i++) {
        struct made m;

        make(&trials[i], &m);
        gradcheck_run(&m.gc);
        m.gc.n_out = 1; /* the state is not an output */
        gradcheck_run(&m.gc);
    }
}

static void refused(struct made *m, const char *why)
{
    struct gradcheck_result r;
    struct err err = { 0 };

    assert_int_equal(gradcheck_forward(&m->gc, &r, &err), ERR_INPUT);
    if (strstr(err.text, why) == NULL)
        fail_msg("'%s' lacks '%s'", err.text, why);
}

static void inconsistent_inputs_are_rejected(void **state)
{
    const struct trial *c = &trials[6];
    struct made m;

    (void)state;
    make(c, &m);
    m.attrs[2].s = "gate";
    refused(&m, "update_rule 'gate'; expected linear, gated, delta or gated_delta");
    make(c, &m);
    m.attrs[2].s = "gated";
    refused(&m, "expected an input decay and no beta");
    make(c, &m);
    m.gc.in[4].absent = true;
    refused(&m, "expected an input decay");
    make(c, &m);
    m.attrs[0].i = 3;
    refused(&m, "a multiple of kv_num_heads");
    make(c, &m);
    m.gc.in[4].shape.dim[2] = 3;
    refused(&m, "decay has 3 columns; expected 2 or 8");
    make(c, &m);
    m.gc.in[5].shape.dim[2] = 3;
    refused(&m, "beta has 3 columns; expected 1 or 2");
    make(c, &m);
    m.gc.in[3].shape.dim[2] = 3;
    refused(&m, "past_state: expected shape [2, 2, 4, 3]");
    make(c, &m);
    m.gc.in[1].shape.dim[1] = 3;
    refused(&m, "as input 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_follow_definition),
        cmocka_unit_test(gradients_match_differences),
        cmocka_unit_test(inconsistent_inputs_are_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
