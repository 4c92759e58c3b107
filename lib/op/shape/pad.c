/* pad.c - Pad: y is x with more on either side of each axis, or less where a pad is negative.
 *   constant: a scalar (input 2, default 0)     edge: the outermost elements again
 *   reflect: mirrored at the outermost element  wrap (opset 19): the other end
 * dx is dy in its place, and what the repetitions of an element bring. Any type.
 * Opset 2: pads and value are attributes. 11: inputs 1 and 2. 18: input 3 names the axes.
 *
 * Along an axis y has up to three stretches: before, the input, behind. Each combination of
 * stretches over the axes is one part (parts.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/parts.h"

enum mode { CONSTANT, REFLECT, EDGE, WRAP };

struct pad {
    enum mode mode;
    int64_t before[TENSOR_MAX_RANK], behind[TENSOR_MAX_RANK];
    float value; /* of the attribute */
};

struct stretch {
    int64_t y, size; /* where in y, how long */
    int64_t x, step; /* from where in x */
};

static int read_mode(struct op_infer *f, struct err *err)
{
    static const char *const names[] = { "constant", "reflect", "edge", "wrap" };
    struct pad *p = f->param;
    const char *mode = NULL;
    uint32_t i, n = f->opset < 19 ? 3 : 4;
    int rc = op_attr_s(f, "mode", "constant", &mode, err);

    if (rc < 0)
        return rc;
    for (i = 0; i < n; i++) {
        if (strcmp(mode, names[i]) == 0) {
            p->mode = (enum mode)i;
            return 0;
        }
    }
    return op_error(f, ERR_INPUT, err, "mode is '%s'; expected constant, reflect%s", mode,
                    n == 3 ? " or edge" : ", edge or wrap");
}

/* One axis: is there enough to repeat, and how long does it become? */
static int check_axis(const struct op_infer *f, uint32_t k, int64_t *dim, struct err *err)
{
    const struct pad *p = f->param;
    int64_t longest = p->before[k] > p->behind[k] ? p->before[k] : p->behind[k];
    int64_t there = p->mode == REFLECT ? *dim - 1 : p->mode == WRAP ? *dim : INT64_MAX;
    int64_t cut = (p->before[k] < 0 ? p->before[k] : 0) + (p->behind[k] < 0 ? p->behind[k] : 0);

    if (p->mode == EDGE && *dim == 0)
        there = 0;
    if (p->mode != CONSTANT && longest > 0 && longest > there)
        return op_error(f, ERR_UNSUPPORTED, err, "axis %" PRIu32 " of %" PRId64 " elements is to "
                        "be padded by %" PRId64 "; there are %" PRId64 " to repeat", k, *dim,
                        longest, there < 0 ? 0 : there);
    if (*dim + cut < 0 || __builtin_add_overflow(*dim, p->before[k], dim) ||
        __builtin_add_overflow(*dim, p->behind[k], dim))
        return op_error(f, ERR_INPUT, err, "axis %" PRIu32 " cannot be padded by %" PRId64
                        " and %" PRId64, k, p->before[k], p->behind[k]);
    return 0;
}

/* `axes` NULL: all, in order. */
static int settle(struct op_infer *f, const int64_t *pads, size_t n, const int64_t *axes,
                  size_t n_axes, struct err *err)
{
    const int64_t limit = (int64_t)1 << 40;
    struct pad *p = f->param;
    struct shape *y = &f->out[0].shape;
    uint32_t seen = 0, k;
    size_t i;
    int rc = 0;

    *y = f->in[0]->shape;
    f->out[0].dtype = f->in[0]->dtype;
    if (axes == NULL)
        n_axes = y->rank;
    if (n != 2 * n_axes)
        return op_error(f, ERR_INPUT, err, "%zu pads for %zu axes; expected two for each", n,
                        n_axes);
    for (i = 0; i < n_axes && rc == 0; i++) {
        int64_t axis = axes != NULL ? axes[i] : (int64_t)i;

        rc = op_axis(f, &axis, y->rank, err);
        if (rc < 0)
            break;
        if ((seen & (1u << axis)) != 0)
            return op_error(f, ERR_INPUT, err, "axis %" PRId64 " comes twice", axis);
        if (pads[i] > limit || pads[i] < -limit || pads[n_axes + i] > limit ||
            pads[n_axes + i] < -limit)
            return op_error(f, ERR_INPUT, err, "a pad of %" PRId64 " is absurd",
                            pads[i] > limit || pads[i] < -limit ? pads[i] : pads[n_axes + i]);
        seen |= 1u << axis;
        p->before[axis] = pads[i];
        p->behind[axis] = pads[n_axes + i];
    }
    for (k = 0; k < y->rank && rc == 0; k++)
        rc = check_axis(f, k, &y->dim[k], err);
    return rc < 0 ? rc : op_fits(f, err);
}

static int infer_2(struct op_infer *f, struct err *err)
{
    struct pad *p = f->param;
    const int64_t *pads;
    size_t n;
    int rc = op_need(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = read_mode(f, err);
    if (rc == 0)
        rc = op_attr_f(f, "value", 0, &p->value, err);
    if (rc == 0)
        rc = op_attr_ints(f, "pads", &pads, &n, err);
    return rc < 0 ? rc : settle(f, pads, n, NULL, 0, err);
}

static int infer_11(struct op_infer *f, struct err *err)
{
    const int64_t *pads, *axes;
    size_t n, n_axes;
    int rc = read_mode(f, err);

    if (rc == 0)
        rc = op_const_ints(f, 1, &pads, &n, err);
    if (rc == 0)
        rc = op_const_ints(f, 3, &axes, &n_axes, err);
    if (rc < 0)
        return rc;
    if (f->in[0] == NULL)
        return op_error(f, ERR_INPUT, err, "input 0 is missing");
    if (f->n_in > 2 && f->in[2] != NULL) {
        rc = op_need(f, 2, f->in[0]->dtype, -1, err);
        if (rc == 0 && tensor_elements(f->in[2]) != 1)
            rc = op_error(f, ERR_INPUT, err, "the constant is not one number");
    }
    return rc < 0 ? rc : settle(f, pads, n, axes, n_axes, err);
}

/* The stretches of axis k; returns how many. */
static uint32_t stretches(const struct pad *p, uint32_t k, int64_t dim, struct stretch *s)
{
    int64_t before = p->before[k], behind = p->behind[k];
    int64_t cut = before < 0 ? -before : 0;
    int64_t kept = dim - cut - (behind < 0 ? -behind : 0);
    int64_t at = before > 0 ? before : 0;
    uint32_t n = 0;

    s[n++] = (struct stretch){ at, kept, cut, 1 };
    if (p->mode != CONSTANT && before > 0)
        s[n++] = (struct stretch){ 0, before,
                                   p->mode == REFLECT ? before : p->mode == EDGE ? 0 : dim - before,
                                   p->mode == REFLECT ? -1 : p->mode == EDGE ? 0 : 1 };
    if (p->mode != CONSTANT && behind > 0)
        s[n++] = (struct stretch){ at + kept, behind,
                                   p->mode == REFLECT ? dim - 2 : p->mode == EDGE ? dim - 1 : 0,
                                   p->mode == REFLECT ? -1 : p->mode == EDGE ? 0 : 1 };
    return n;
}

static int pad_plan(struct op_plan *p, struct err *err)
{
    const struct pad *c = p->param;
    const struct shape *x = &p->in[0]->shape;
    struct stretch along[TENSOR_MAX_RANK][3];
    uint32_t n[TENSOR_MAX_RANK], total = 1, i, k, rest;
    struct parts *s;

    for (k = 0; k < x->rank; k++) {
        n[k] = stretches(c, k, x->dim[k], along[k]);
        total *= n[k];
    }
    s = parts_new(p, total, err);
    if (s == NULL)
        return ERR_NOMEM;
    for (i = 0; i < total; i++) {
        int64_t size[TENSOR_MAX_RANK], from[TENSOR_MAX_RANK], step[TENSOR_MAX_RANK],
            to[TENSOR_MAX_RANK];

        for (k = 0, rest = i; k < x->rank; rest /= n[k], k++) {
            const struct stretch *t = &along[k][rest % n[k]];

            size[k] = t->size;
            from[k] = t->x;
            step[k] = t->step;
            to[k] = t->y;
        }
        part_box(&s->at[i], p->in[0], &p->out[0], size, from, step, to);
    }
    s->fills = c->mode == CONSTANT;
    s->fill_in = 2;
    s->gaps = false;
    for (k = 0; k < x->rank; k++)
        s->gaps = s->gaps || n[k] > 1 || c->before[k] < 0 || c->behind[k] < 0;
    return 0;
}

/* The value as if it were input 2. */
static int fwd_2(const struct op_call *c, struct err *err)
{
    const struct pad *p = c->param;
    const struct tensor value = { .dtype = TENSOR_F32, .data = (void *)(uintptr_t)&p->value };
    const struct tensor *in[3] = { c->in[0], NULL, &value };
    struct op_call call = *c;

    call.in = in;
    call.n_in = 3;
    return parts_fwd(&call, err);
}

static const char *const attrs_2[] = { "mode", "pads", "value", NULL };
static const char *const attrs_11[] = { "mode", NULL };

#define FIELDS                                                                                     \
    .name = "Pad", .n_out = { 1, 1 }, .param_bytes = sizeof(struct pad), .diff = OP_IN(0),         \
    .layout = OP_LAYOUT_ANY

const struct op_def op_pad_2 = { FIELDS, .since = 2, .until = 10, .n_in = { 1, 1 },
                                 .attrs = attrs_2, .infer = infer_2,
                                 .cpu = { pad_plan, fwd_2, parts_bwd, free } };
const struct op_def op_pad_11 = { FIELDS, .since = 11, .until = 17, .n_in = { 2, 3 },
                                  .attrs = attrs_11, .infer = infer_11,
                                  .cpu = { pad_plan, parts_fwd, parts_bwd, free } };
const struct op_def op_pad_18 = { FIELDS, .since = 18, .n_in = { 2, 4 }, .attrs = attrs_11,
                                  .infer = infer_11,
                                  .cpu = { pad_plan, parts_fwd, parts_bwd, free } };
