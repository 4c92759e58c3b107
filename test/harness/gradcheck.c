/* gradcheck.c - each check opens a rig (op_rig.h), runs it, and verifies the results. */
#include "harness/gradcheck.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "harness/op_record.h"
#include "harness/op_rig.h"

/* ---- results ---- */

static void copy_results(const struct rig *r, struct gradcheck_result *res, bool gradients)
{
    bool wide = r->gc->half != 0;
    uint32_t i;

    for (i = 0; i < GRADCHECK_MAX; i++) {
        if (!gradients && r->in_at[i] != NULL)
            rig_take(&r->in[i], &res->in[i], wide);
        if (!gradients && r->out_at[i] != NULL)
            rig_take(&r->out[i], &res->out[i], wide);
        if (gradients && r->dout_at[i] != NULL)
            rig_take(&r->dout[i], &res->dout[i], wide);
        if (gradients && r->din_at[i] != NULL)
            rig_take(&r->din[i], &res->din[i], wide);
    }
}

void gradcheck_free(struct gradcheck_result *r)
{
    uint32_t i;

    for (i = 0; i < GRADCHECK_MAX; i++) {
        free(r->in[i].data);
        free(r->out[i].data);
        free(r->dout[i].data);
        free(r->din[i].data);
    }
    memset(r, 0, sizeof(*r));
}

static bool same_bits(const struct tensor *a, const struct tensor *b)
{
    if (a->data == NULL || b->data == NULL)
        return a->data == b->data;
    return tensor_bytes(a) == tensor_bytes(b) && memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

static void expect_same_bits(const char *name, const char *what, const struct gradcheck_result *a,
                             const struct gradcheck_result *b)
{
    uint32_t i;

    for (i = 0; i < GRADCHECK_MAX; i++) {
        if (!same_bits(&a->out[i], &b->out[i]))
            fail_msg("%s: output %u has other bits %s", name, i, what);
        if (!same_bits(&a->din[i], &b->din[i]))
            fail_msg("%s: gradient of input %u has other bits %s", name, i, what);
    }
}

static int run_whole(struct rig *r, int poison_byte, bool backward, struct gradcheck_result *res,
                     struct err *err)
{
    int rc = rig_fwd(r, poison_byte, err);

    /* a GPU plan starts backward before the error is known */
    if (rc < 0 && r->refused_on_gpu && r->wanted != 0)
        rig_bwd(r, poison_byte, 0);
    if (rc < 0)
        return rc;
    copy_results(r, res, false);
    if (backward && r->wanted != 0) {
        rig_bwd(r, poison_byte, 0);
        copy_results(r, res, true);
    }
    return 0;
}

typedef int open_fn(struct rig *r, const struct gradcheck_case *gc, uint32_t wanted,
                    struct err *err);

static int run_twice_on(open_fn *open, const struct gradcheck_case *gc, uint32_t wanted,
                        bool backward, struct gradcheck_result *res, struct err *err)
{
    struct gradcheck_result again = { 0 };
    struct rig r;
    int rc;

    memset(res, 0, sizeof(*res));
    rc = open(&r, gc, wanted, err);
    if (rc < 0)
        return rc;
    rc = run_whole(&r, RIG_POISON_NAN, backward, res, err);
    if (rc == 0) {
        assert_int_equal(run_whole(&r, RIG_POISON_BIG, backward, &again, err), 0);
        expect_same_bits(r.name, "when run again over other garbage", res, &again);
    }
    gradcheck_free(&again);
    rig_close(&r);
    return rc;
}

static int run_twice(const struct gradcheck_case *gc, uint32_t wanted, bool backward,
                     struct gradcheck_result *res, struct err *err)
{
    return run_twice_on(rig_open, gc, wanted, backward, res, err);
}

int gradcheck_forward(const struct gradcheck_case *gc, struct gradcheck_result *r, struct err *err)
{
    return run_twice(gc, UINT32_MAX, false, r, err);
}

int gradcheck_backward(const struct gradcheck_case *gc, struct gradcheck_result *r, struct err *err)
{
    return run_twice(gc, UINT32_MAX, true, r, err);
}

/* ---- finite differences ---- */

/* Each needs four calls, which are slow in the emulator. In addition, every GPU gradient is
 * compared with that of the CPU. */
enum { GPU_PROBES = 8 };

struct slope {
    double value;
    double noise; /* error bound from rounding of the outputs that changed; if none changed, of all
                     outputs */
};

/* Returns (f(x + h) - f(x - h)) / 2h for element `at` (in memory order) of input i, f = sum(dout *
 * out). */
static struct slope central(struct rig *r, uint32_t i, size_t at, double h)
{
    float *x = r->in[i].data, x0 = x[at], *kept = r->kept[i], side[2];
    float *low[GRADCHECK_MAX] = { NULL };
    double sum = 0, moved = 0, all = 0, span;
    struct err err = { 0 };
    uint32_t k, s;
    size_t j;

    side[0] = (float)(x0 - h);
    side[1] = (float)(x0 + h);
    span = (double)side[1] - (double)side[0];
    for (s = 0; s < 2; s++) {
        x[at] = kept[at] = side[s];
        if (rig_fwd(r, RIG_POISON_NAN, &err) < 0)
            fail_msg("%s: forward refused a moved input: %s", r->name, err.text);
        for (k = 0; k < r->n_out; k++) {
            const float *out = r->out[k].data, *w = r->dout[k].data;
            size_t n = r->out_mem[k].bytes / sizeof(float);

            if (r->dout_at[k] == NULL)
                continue;
            if (s == 0) {
                low[k] = malloc(n * sizeof(float) + 1);
                assert_non_null(low[k]);
                memcpy(low[k], out, n * sizeof(float));
                continue;
            }
            for (j = 0; j < n; j++) {
                double size = (double)w[j] * fmax(fabs((double)out[j]), fabs((double)low[k][j]));

                sum += (double)w[j] * ((double)out[j] - (double)low[k][j]);
                moved += out[j] != low[k][j] ? size * size : 0;
                all += size * size;
            }
            free(low[k]);
        }
    }
    x[at] = kept[at] = x0;
    return (struct slope){ sum / span, 8 * 0x1p-24 * sqrt(moved > 0 ? moved : all) / h };
}

static double step_for(const struct gradcheck_case *gc, uint32_t i, size_t n)
{
    const struct gradcheck_tensor *gt = &gc->in[i];
    double h = gc->step > 0 ? gc->step : 1.0 / 64;
    double width = gt->lo == 0 && gt->hi == 0 ? 2 : gt->hi - gt->lo;

    return gt->apart ? fmin(h, width / (double)n / 8) : h;
}

/* Perturbs all elements of input i, or `probes` elements spread evenly, including the first and the
 * last. */
static void check_slopes(struct rig *r, uint32_t i, const float *got)
{
    size_t n = (size_t)tensor_elements(&r->in[i]), k;
    size_t probes = r->gc->probes > 0 ? r->gc->probes : 200, m;
    double tol = r->gc->tol > 0 ? r->gc->tol : 1e-3, h = step_for(r->gc, i, n), square = 0, rms;
    struct slope *want;

    if (r->cuda != NULL && probes > GPU_PROBES)
        probes = GPU_PROBES;
    m = n < probes ? n : probes;
    want = calloc(m + 1, sizeof(*want));
    assert_non_null(want);
    for (k = 0; k < m; k++) {
        size_t at = rig_place(&r->in[i], m == 1 ? 0 : k * (n - 1) / (m - 1));
        struct slope wide = central(r, i, at, h), narrow = central(r, i, at, h / 2);

        want[k].value = (4 * narrow.value - wide.value) / 3;
        want[k].noise = 2 * fmax(narrow.noise, wide.noise);
        square += want[k].value * want[k].value;
    }
    rms = m > 0 ? sqrt(square / (double)m) : 0;
    for (k = 0; k < m; k++) {
        size_t at = m == 1 ? 0 : k * (n - 1) / (m - 1);
        double allowed = tol * (fabs(want[k].value) + rms) + want[k].noise;

        if (!(fabs(got[at] - want[k].value) <= allowed))
            fail_msg("%s: gradient of input %u, element %zu of %zu: backward says %.9g, "
                     "differences say %.9g (allowed %.2g)",
                     r->name, i, at, n, (double)got[at], want[k].value, allowed);
    }
    free(want);
}

/* ---- the checks of gradcheck_run ---- */

static void expect_within(double tol, const char *name, const char *what, uint32_t i,
                          const char *how, const float *got, const float *want, size_t n)
{
    double square = 0, rms;
    size_t k;

    for (k = 0; k < n; k++)
        square += isfinite(want[k]) ? (double)want[k] * want[k] : 0;
    rms = n > 0 ? sqrt(square / (double)n) : 0;
    for (k = 0; k < n; k++)
        if (got[k] != want[k] && !(isnan(got[k]) && isnan(want[k])) &&
            !(isfinite(want[k]) &&
              fabs((double)got[k] - want[k]) <= tol * (fabs((double)want[k]) + rms)))
            fail_msg("%s: %s %u %s, element %zu of %zu: %.9g, expected %.9g", name, what, i, how, k,
                     n, (double)got[k], (double)want[k]);
}

static void expect_near(const char *name, const char *what, uint32_t i, const char *how,
                        const float *got, const float *want, size_t n)
{
    expect_within(1e-5, name, what, i, how, got, want, n);
}

static void check_alone(const struct gradcheck_case *gc, const struct gradcheck_result *all)
{
    struct err err = { 0 };
    uint32_t i;

    for (i = 0; i < gc->n_in; i++) {
        struct gradcheck_result one;

        if (all->din[i].data == NULL)
            continue;
        assert_int_equal(run_twice(gc, OP_IN(i), true, &one, &err), 0);
        expect_near(gc->op != NULL ? gc->op : gc->def->name, "gradient of input", i,
                    "asked for alone", one.din[i].data, all->din[i].data,
                    (size_t)tensor_elements(&all->din[i]));
        gradcheck_free(&one);
    }
}

static void check_add(const struct gradcheck_case *gc, const struct gradcheck_result *all,
                      uint32_t add)
{
    static const struct gradcheck_tensor unit = { .lo = -1, .hi = 1 };
    struct err err = { 0 };
    struct rig r;
    uint32_t i;

    assert_int_equal(rig_open(&r, gc, UINT32_MAX, &err), 0);
    assert_int_equal(rig_fwd(&r, RIG_POISON_NAN, &err), 0);
    for (i = 0; i < r.n_in; i++)
        if ((add & r.wanted & OP_IN(i)) != 0)
            rig_random(&unit, TENSOR_F32, r.din[i].data, (size_t)tensor_elements(&r.din[i]),
                       7000 + i);
    rig_bwd(&r, RIG_POISON_BIG, add & r.wanted);
    for (i = 0; i < r.n_in; i++) {
        size_t n = (size_t)tensor_elements(&r.in[i]), k;
        float *want;

        if ((r.wanted & OP_IN(i)) == 0)
            continue;
        want = calloc(n + 1, sizeof(*want));
        assert_non_null(want);
        if ((add & OP_IN(i)) != 0)
            rig_random(&unit, TENSOR_F32, want, n, 7000 + i);
        for (k = 0; k < n; k++)
            want[rig_place(&r.din[i], k)] += ((const float *)all->din[i].data)[k];
        expect_near(r.name, "gradient of input", i,
                    (add & OP_IN(i)) != 0 ? "when added" : "beside one that is added",
                    r.din[i].data, want, n);
        free(want);
    }
    rig_close(&r);
}

/* Checks that output 0 may use the memory of input 0. */
static void check_in_place(const struct gradcheck_case *gc, const struct gradcheck_result *all)
{
    struct gradcheck_result res = { 0 };
    struct err err = { 0 };
    struct rig r;

    assert_int_equal(rig_open(&r, gc, UINT32_MAX, &err), 0);
    if (shape_equal(&r.in[0].shape, &r.out[0].shape) && (gc->unread & OP_OUT(0)) == 0) {
        r.out[0].data = r.in[0].data;
        assert_int_equal(rig_call(&r, false, &err), 0);
        rig_check_guards(&r);
        rig_take(&r.out[0], &res.out[0], false);
        if (!same_bits(&res.out[0], &all->out[0]))
            fail_msg("%s: output 0 has other bits when it shares the memory of input 0", r.name);
    }
    gradcheck_free(&res);
    rig_close(&r);
}

/* The results may differ by the order of sums, but not otherwise. */
static void expect_same_values(const char *name, const char *how, double tol,
                               const struct gradcheck_result *a, const struct gradcheck_result *b)
{
    uint32_t i;

    for (i = 0; i < GRADCHECK_MAX; i++) {
        size_t n = (size_t)tensor_elements(&a->out[i]);

        if (a->out[i].data != NULL && a->out[i].dtype == TENSOR_F32)
            expect_within(tol, name, "output", i, how, b->out[i].data, a->out[i].data, n);
        else if (!same_bits(&a->out[i], &b->out[i]))
            fail_msg("%s: output %u %s", name, i, how);
        if (a->din[i].data != NULL)
            expect_within(tol, name, "gradient of input", i, how, b->din[i].data, a->din[i].data,
                          (size_t)tensor_elements(&a->din[i]));
    }
}

/* Compares the results of a GPU with those of the CPU. */
static void check_cpu(const struct gradcheck_case *gc, const char *name,
                      const struct gradcheck_result *res)
{
    struct gradcheck_result cpu;
    struct err err = { 0 };

    assert_int_equal(run_twice_on(rig_open_cpu, gc, UINT32_MAX, true, &cpu, &err), 0);
    expect_same_values(name, "is not what the CPU computes", gc->half != 0 ? 1e-2 : 3e-5, &cpu,
                       res);
    gradcheck_free(&cpu);
}

/* *res: the results, owned by the caller. */
static void check_layout(const struct gradcheck_case *gc, struct gradcheck_result *res)
{
    struct err err = { 0 };
    struct rig r;
    uint32_t i;

    if (run_twice(gc, UINT32_MAX, true, res, &err) < 0)
        fail_msg("%s: %s", gc->op != NULL ? gc->op : gc->def->name, err.text);
    assert_int_equal(rig_open(&r, gc, UINT32_MAX, &err), 0);
    for (i = 0; i < r.n_in; i++)
        if ((r.wanted & OP_IN(i) & r.def->diff) != 0)
            check_slopes(&r, i, res->din[i].data);
    if (r.wanted != 0) {
        check_alone(gc, res);
        for (i = 0; i < r.n_in; i++)
            if ((r.wanted & OP_IN(i) & r.def->diff) != 0)
                check_add(gc, res, OP_IN(i));
        check_add(gc, res, r.def->diff);
    }
    if (r.def->in_place)
        check_in_place(gc, res);
    if (r.cuda != NULL)
        check_cpu(gc, r.name, res);
    rig_close(&r);
}

void gradcheck_run(const struct gradcheck_case *gc)
{
    const struct op_def *def = gc->def != NULL ? gc->def : op_find(gc->domain, gc->op, gc->opset);
    struct gradcheck_case other = *gc;
    struct gradcheck_result res, other_res;
    bool has_channels = false;
    uint32_t i;

    if (def == NULL)
        fail_msg("no row for %s at opset %u", gc->op, gc->opset);
    if (!op_record_wants(def))
        return;
    check_layout(gc, &res);
    for (i = 0; i < gc->n_in; i++)
        has_channels = has_channels || (gc->in[i].shape.rank >= 3 && !gc->in[i].absent);
    if (def->layout == OP_LAYOUT_ANY && has_channels) {
        other.layout = gc->layout == TENSOR_PLAIN ? TENSOR_CHANNELS_LAST : TENSOR_PLAIN;
        check_layout(&other, &other_res);
        expect_same_values(def->name, "is not the same channels-last", 1e-5, &res, &other_res);
        gradcheck_free(&other_res);
    }
    for (i = 0; i < gc->n_in && (res.din[i].data == NULL || (def->diff & OP_IN(i)) == 0); i++)
        ;
    if (i < gc->n_in)
        op_record(def, OP_RECORD_GRADIENT);
    gradcheck_free(&res);
}

void gradcheck_near(const char *what, const float *got, const double *want, size_t n, double tol)
{
    size_t k;

    for (k = 0; k < n; k++) {
        if (isnan(want[k]) ? isnan(got[k])
                           : got[k] == (float)want[k] ||
                                 fabs((double)got[k] - want[k]) <= tol * (1 + fabs(want[k])))
            continue;
        fail_msg("%s: element %zu of %zu is %.9g, expected %.9g", what, k, n, (double)got[k],
                 want[k]);
    }
}
