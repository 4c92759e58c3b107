/* rotary.c - trainerd.Rotary: y = rotary position embedding of t = Transpose(x, perm). With h half
 * of the last axis, element j < h of a row is paired with element j + h:
 *   y[j]     = t[j] cos[j]         - t[j + h] sin[j]
 *   y[j + h] = t[j + h] cos[j + h] + t[j] sin[j + h]
 * which equals t cos + Concat(-second half, first half) sin. cos and sin broadcast to t, except
 * that their last axis has all its elements, or half of them, which then serve both halves. perm
 * keeps the last axis last; without the attribute t is x. interleaved 1: elements 2j and 2j + 1 are
 * paired, and cos and sin have half of the last axis:
 *   y[2j]     = t[2j] cos[j]     - t[2j + 1] sin[j]
 *   y[2j + 1] = t[2j + 1] cos[j] + t[2j] sin[j]
 * The gradient (interleaved: 2j and 2j + 1 in place of j and j + h):
 *   dt[j]     = dy[j] cos[j]         + dy[j + h] sin[j + h]
 *   dt[j + h] = dy[j + h] cos[j + h] - dy[j] sin[j]
 * Angles have no gradient. */
#include "op/attention/rotary.h"

#include <inttypes.h>

#include "base/err.h"
#include "op/half.h"
#include "op/op_priv.h"

static int read_perm(const struct op_infer *f, uint32_t rank, uint32_t *perm, struct err *err)
{
    const int64_t *list;
    uint32_t seen = 0, k;
    size_t n;
    int rc = op_attr_ints(f, "perm", &list, &n, err);

    if (rc < 0)
        return rc;
    for (k = 0; k < rank; k++) {
        int64_t axis = list != NULL && n == rank ? list[k] : (int64_t)k;

        if ((list != NULL && n != rank) || axis < 0 || axis >= rank || (seen & (1u << axis)) != 0 ||
            (k + 1 == rank && axis != (int64_t)k))
            return op_error(f, ERR_INPUT, err,
                            "perm: expected each of 0 to %" PRIu32 " once, the last in its place",
                            rank - 1);
        seen |= 1u << axis;
        perm[k] = (uint32_t)axis;
    }
    return 0;
}

static void plain_steps(const struct shape *s, ptrdiff_t *step)
{
    ptrdiff_t size = 1;

    for (uint32_t i = s->rank; i-- > 0;) {
        step[i] = size;
        size *= (ptrdiff_t)s->dim[i];
    }
}

/* Returns the strides of input i, which broadcasts to y. */
static int angle(const struct op_infer *f, uint32_t i, ptrdiff_t *step, ptrdiff_t *to_half,
                 struct err *err)
{
    const struct shape *y = &f->out[0].shape, *s;
    ptrdiff_t own[TENSOR_MAX_RANK];
    char text[2][192];
    uint32_t skip;
    int64_t width;
    bool fits;
    int rc = op_check_input(f, i, TENSOR_F32, -1, err);

    if (rc < 0)
        return rc;
    s = &f->in[i]->shape;
    width = y->dim[y->rank - 1];
    fits = s->rank > 0 && s->rank <= y->rank &&
           (s->dim[s->rank - 1] == width || s->dim[s->rank - 1] == width / 2);
    skip = fits ? y->rank - s->rank : 0;
    plain_steps(s, own);
    for (uint32_t k = 0; fits && k + 1 < y->rank; k++) {
        int64_t dim = k < skip ? 1 : s->dim[k - skip];

        fits = dim == 1 || dim == y->dim[k];
        step[k] = dim == 1 ? 0 : own[k - skip];
    }
    if (!fits)
        return op_error(f, ERR_INPUT, err, "input %" PRIu32 " has shape %s; expected one that broadcasts to %s, with "
                        "all or half of its last axis", i, shape_print(s, text[0], sizeof(text[0])),
                        shape_print(y, text[1], sizeof(text[1])));
    *to_half = s->dim[s->rank - 1] == width ? (ptrdiff_t)(width / 2) : 0;
    return 0;
}

static int rotary_infer(struct op_infer *f, struct err *err)
{
    struct rotary *r = f->param;
    ptrdiff_t own[TENSOR_MAX_RANK];
    uint32_t perm[TENSOR_MAX_RANK], k;
    const struct shape *x;
    int64_t pairs;
    char text[192];
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = op_attr_i(f, "interleaved", 0, &pairs, err);
    if (rc < 0)
        return rc;
    r->pairs = pairs != 0;
    x = &f->in[0]->shape;
    if (x->rank == 0 || x->dim[x->rank - 1] < 2 || x->dim[x->rank - 1] % 2 != 0)
        return op_error(f, ERR_INPUT, err, "input 0 has shape %s; expected an even last axis",
                        shape_print(x, text, sizeof(text)));
    rc = read_perm(f, x->rank, perm, err);
    if (rc < 0)
        return rc;
    plain_steps(x, own);
    f->out[0].dtype = TENSOR_F32;
    f->out[0].shape.rank = x->rank;
    r->axes = x->rank - 1;
    r->rows = 1;
    for (k = 0; k < x->rank; k++)
        f->out[0].shape.dim[k] = x->dim[perm[k]];
    for (k = 0; k < r->axes; k++) {
        r->size[k] = x->dim[perm[k]];
        r->x[k] = own[perm[k]];
        r->rows *= r->size[k];
    }
    r->half = x->dim[x->rank - 1] / 2;
    rc = angle(f, 1, r->cos, &r->cos_half, err);
    if (rc == 0)
        rc = angle(f, 2, r->sin, &r->sin_half, err);
    if (rc == 0 && r->pairs && (r->cos_half != 0 || r->sin_half != 0))
        return op_error(f, ERR_INPUT, err,
                        "interleaved: expected half of the last axis in inputs 1 and 2");
    return rc;
}

/* ---- kernels ---- */

/* Rotates a row. y may be x. cos and sin belong to the first half of the row, cos2 and sin2 to the
 * second. */
CLONES static void rotate(int64_t half, const float *x, const float *cos, const float *cos2,
                          const float *sin, const float *sin2, float *y)
{
    int64_t j;

    OP_EACH
    for (j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];

        y[j] = a * cos[j] - b * sin[j];
        y[j + half] = b * cos2[j] + a * sin2[j];
    }
}

CLONES static void rotate_pairs(int64_t half, const float *x, const float *cos, const float *cos2,
                                const float *sin, const float *sin2, float *y)
{
    int64_t j;

    OP_EACH
    for (j = 0; j < half; j++) {
        float a = x[2 * j], b = x[2 * j + 1];

        y[2 * j] = a * cos[j] - b * sin[j];
        y[2 * j + 1] = b * cos2[j] + a * sin2[j];
    }
}

CLONES static void rotate_pairs_back(int64_t half, const float *d, const float *cos,
                                     const float *cos2, const float *sin, const float *sin2,
                                     float *g)
{
    int64_t j;

    OP_EACH
    for (j = 0; j < half; j++) {
        float a = d[2 * j], b = d[2 * j + 1];

        g[2 * j] = a * cos[j] + b * sin2[j];
        g[2 * j + 1] = b * cos2[j] - a * sin[j];
    }
}

CLONES static void rotate_pairs_back_add(int64_t half, const float *d, const float *cos,
                                         const float *cos2, const float *sin, const float *sin2,
                                         float *g)
{
    int64_t j;

    OP_EACH
    for (j = 0; j < half; j++) {
        float a = d[2 * j], b = d[2 * j + 1];

        g[2 * j] += a * cos[j] + b * sin2[j];
        g[2 * j + 1] += b * cos2[j] - a * sin[j];
    }
}

CLONES static void rotate_back(int64_t half, const float *d, const float *cos, const float *cos2,
                               const float *sin, const float *sin2, float *g)
{
    int64_t j;

    OP_EACH
    for (j = 0; j < half; j++) {
        float a = d[j], b = d[j + half];

        g[j] = a * cos[j] + b * sin2[j];
        g[j + half] = b * cos2[j] - a * sin[j];
    }
}

CLONES static void rotate_back_add(int64_t half, const float *d, const float *cos,
                                   const float *cos2, const float *sin, const float *sin2, float *g)
{
    int64_t j;

    OP_EACH
    for (j = 0; j < half; j++) {
        float a = d[j], b = d[j + half];

        g[j] += a * cos[j] + b * sin2[j];
        g[j + half] += b * cos2[j] - a * sin[j];
    }
}

static int rotary_plan(struct op_plan *p, struct err *err)
{
    const struct rotary *r = p->param;

    (void)err;
    /* a converted row of x and of y */
    p->scratch_bytes = 2 * op_round((size_t)(2 * r->half) * sizeof(float));
    return 0;
}

static int rotary_fwd(const struct op_call *c, struct err *err)
{
    const struct rotary *r = c->param;
    const float *cos = c->in[1]->data, *sin = c->in[2]->data;
    size_t width = (size_t)(2 * r->half);
    float *room = c->scratch, *more = op_at(c->scratch, op_round(width * sizeof(float)));
    struct rotary_row row = { .x = 0 };

    (void)err; /* cannot fail */
    for (int64_t i = 0; i < r->rows; i++, rotary_next(r, &row)) {
        const float *x = op_floats(c->in[0], (size_t)row.x, width, room), *cs = cos + row.cos,
                    *sn = sin + row.sin;
        float *y = op_floats_to(c->out[0], (size_t)i * width, more);

        (r->pairs ? rotate_pairs : rotate)(r->half, x, cs, cs + r->cos_half, sn, sn + r->sin_half,
                                           y);
        op_floats_done(c->out[0], (size_t)i * width, width, y);
    }
    return 0;
}

static int rotary_bwd(const struct op_call *c, struct err *err)
{
    const struct rotary *r = c->param;
    const float *cos = c->in[1]->data, *sin = c->in[2]->data;
    size_t width = (size_t)(2 * r->half);
    float *room = c->scratch, *more = op_at(c->scratch, op_round(width * sizeof(float)));
    struct rotary_row row = { .x = 0 };
    bool add = op_adds(c, 0);

    (void)err; /* cannot fail */
    if (c->dout[0] == NULL || c->din[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    for (int64_t i = 0; i < r->rows; i++, rotary_next(r, &row)) {
        const float *d = op_floats(c->dout[0], (size_t)i * width, width, room), *cs = cos + row.cos,
                    *sn = sin + row.sin;
        float *g = op_floats_on(c->din[0], (size_t)row.x, add ? width : 0, more);

        (r->pairs ? add ? rotate_pairs_back_add : rotate_pairs_back
         : add    ? rotate_back_add
                  : rotate_back)(r->half, d, cs, cs + r->cos_half, sn, sn + r->sin_half, g);
        op_floats_done(c->din[0], (size_t)row.x, width, g);
    }
    return 0;
}

static const char *const attrs[] = { "perm", "interleaved", NULL };

const struct op_def op_rotary = {
    .domain = "trainerd",
    .name = "Rotary",
    .since = 1,
    .n_in = { 3, 3 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct rotary),
    .infer = rotary_infer,
    .diff = OP_IN(0),
    .bwd_reads = OP_IN(1) | OP_IN(2),
    .layout = OP_LAYOUT_PLAIN,
    .half = OP_HALF_SAME,
    .half_of = OP_IN(0) | OP_OUT(0),
    .cpu = { rotary_plan, rotary_fwd, rotary_bwd, NULL },
};
