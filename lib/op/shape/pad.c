/* pad.c - Pad: y is x extended on both sides of each axis, or cropped where a pad is negative.
 *   constant: a scalar (input 2, default 0)     edge: repeats the outermost elements
 *   reflect: mirrors at the outermost element   wrap (opset 19): continues at the other end
 * reflect and wrap continue beyond the opposite end, by repeated reflection or rotation, as in
 * NumPy; an axis of one element is repeated. dx is the corresponding part of dy, plus the gradients
 * of all repetitions of an element. Any type. Opset 2: pads and value are attributes. 11: inputs 1
 * and 2. 18: input 3 lists the axes.
 *
 * Along an axis y consists of chunks: the input, and on either side laps, of which the last may
 * be incomplete. Each combination of chunks over the axes is one part (parts.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/shape/pad.h"
#include "op/shape/parts.h"

enum { MAX_CHUNKS = 9, PARTS = 16384 /* PARTS: maximum number of parts */ };

struct chunk {
    int64_t y, size;   /* start and length in y */
    int64_t x, step;   /* start and stride in x */
    int64_t laps, lap; /* number of repetitions in y, and their distance */
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
            p->mode = (enum pad_mode)i;
            return 0;
        }
    }
    return op_error(f, ERR_INPUT, err, "mode is '%s'; expected constant, reflect%s", mode,
                    n == 3 ? " or edge" : ", edge or wrap");
}

/* Checks that there are elements to repeat, and computes the new size of one axis. */
static int check_axis(const struct op_infer *f, uint32_t k, int64_t *dim, struct err *err)
{
    const struct pad *p = f->param;
    int64_t cut = (p->before[k] < 0 ? p->before[k] : 0) + (p->behind[k] < 0 ? p->behind[k] : 0);

    if (p->mode != PAD_CONSTANT && *dim == 0 && (p->before[k] > 0 || p->behind[k] > 0))
        return op_error(f, ERR_INPUT, err,
                        "axis %" PRIu32 " has no elements and cannot be padded "
                        "by %" PRId64 " and %" PRId64 ": there is nothing to repeat",
                        k, p->before[k], p->behind[k]);
    if (*dim + cut < 0 || __builtin_add_overflow(*dim, p->before[k], dim) ||
        __builtin_add_overflow(*dim, p->behind[k], dim))
        return op_error(f, ERR_INPUT, err, "axis %" PRIu32 " cannot be padded by %" PRId64
                        " and %" PRId64, k, p->before[k], p->behind[k]);
    return 0;
}

/* Reads the pads. `axes` NULL: all axes, in order. */
static int read_pads(struct op_infer *f, const int64_t *pads, size_t n, const int64_t *axes,
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
            return op_error(f, ERR_INPUT, err, "axis %" PRId64 " is repeated", axis);
        if (pads[i] > limit || pads[i] < -limit || pads[n_axes + i] > limit ||
            pads[n_axes + i] < -limit)
            return op_error(f, ERR_INPUT, err, "a pad of %" PRId64 " is out of range",
                            pads[i] > limit || pads[i] < -limit ? pads[i] : pads[n_axes + i]);
        seen |= 1u << axis;
        p->before[axis] = pads[i];
        p->behind[axis] = pads[n_axes + i];
    }
    for (k = 0; k < y->rank && rc == 0; k++)
        rc = check_axis(f, k, &y->dim[k], err);
    return rc < 0 ? rc : op_check_size(f, err);
}

static int infer_2(struct op_infer *f, struct err *err)
{
    struct pad *p = f->param;
    const int64_t *pads;
    size_t n;
    int rc = op_check_input(f, 0, TENSOR_F32, -1, err);

    if (rc == 0)
        rc = read_mode(f, err);
    if (rc == 0)
        rc = op_attr_f(f, "value", 0, &p->value, err);
    if (rc == 0)
        rc = op_attr_ints(f, "pads", &pads, &n, err);
    return rc < 0 ? rc : read_pads(f, pads, n, NULL, 0, err);
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
        rc = op_check_input(f, 2, f->in[0]->dtype, -1, err);
        if (rc == 0 && tensor_elements(f->in[2]) != 1)
            rc = op_error(f, ERR_INPUT, err, "the constant is not one number");
    }
    return rc < 0 ? rc : read_pads(f, pads, n, axes, n_axes, err);
}

/* One lap of the extension of an axis, from the end of the input outwards. */
struct lap {
    uint32_t n;
    int64_t size; /* total size of the pieces */
    struct piece {
        int64_t at, size, x, step;
    } piece[2];
};

static struct lap lap_of(enum pad_mode mode, int64_t dim, int64_t length, bool behind)
{
    int64_t last = dim - 1;
    struct lap l = { .n = 1, .size = dim };

    if (mode == PAD_EDGE || (mode == PAD_REFLECT && dim == 1)) {
        l.size = length;
        l.piece[0] = (struct piece){ 0, length, behind ? last : 0, 0 };
    } else if (mode == PAD_WRAP) {
        l.piece[0] = (struct piece){ 0, dim, behind ? 0 : last, behind ? 1 : -1 };
    } else {
        l.n = 2;
        l.size = 2 * last;
        l.piece[0] = (struct piece){ 0, dim - 2, behind ? last - 1 : 1, behind ? -1 : 1 };
        l.piece[1] = (struct piece){ dim - 2, dim, behind ? 0 : last, behind ? 1 : -1 };
    }
    return l;
}

/* Returns a piece that begins `out` elements from the end of the input. On the lower side, which
 * begins at `start` in y, the order is reversed. */
static struct chunk place_piece(const struct piece *p, int64_t out, int64_t size, int64_t laps,
                                int64_t lap, bool behind, int64_t start)
{
    if (behind)
        return (struct chunk){ start + out, size, p->x, p->step, laps, lap };
    return (struct chunk){ start - (laps - 1) * lap - out - size, size,
                             p->x + (size - 1) * p->step, -p->step, laps, lap };
}

/* Computes the chunks that extend an axis on one side by `length`, from `start` in y; returns
 * their number. */
static uint32_t continue_axis(enum pad_mode mode, int64_t dim, int64_t length, bool behind,
                              int64_t start, struct chunk *s)
{
    struct lap l = lap_of(mode, dim, length, behind);
    int64_t laps = length / l.size, rest = length % l.size;
    uint32_t i, n = 0;

    for (i = 0; i < l.n; i++) {
        const struct piece *p = &l.piece[i];
        int64_t cut = rest - p->at < p->size ? rest - p->at : p->size;

        if (laps > 0 && p->size > 0)
            s[n++] = place_piece(p, p->at, p->size, laps, l.size, behind, start);
        if (cut > 0)
            s[n++] = place_piece(p, laps * l.size + p->at, cut, 1, 0, behind, start);
    }
    return n;
}

/* Computes the chunks of axis k; returns their number. */
static uint32_t chunks(const struct pad *p, uint32_t k, int64_t dim, struct chunk *s)
{
    int64_t before = p->before[k], behind = p->behind[k];
    int64_t cut = before < 0 ? -before : 0;
    int64_t kept = dim - cut - (behind < 0 ? -behind : 0);
    int64_t at = before > 0 ? before : 0;
    uint32_t n = 1;

    s[0] = (struct chunk){ at, kept, cut, 1, 1, 0 };
    if (p->mode != PAD_CONSTANT && before > 0)
        n += continue_axis(p->mode, dim, before, false, at, &s[n]);
    if (p->mode != PAD_CONSTANT && behind > 0)
        n += continue_axis(p->mode, dim, behind, true, at + kept, &s[n]);
    return n;
}

/* Part i combines one of the n[k] chunks of each axis k; the digits of i are the indices of the
 * chunks. */
static void make_part(const struct op_plan *p, struct chunk along[][MAX_CHUNKS], const uint32_t *n,
                      uint32_t i, struct part *part)
{
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    uint32_t k;

    op_strides(p->in[0], from);
    op_strides(&p->out[0], to);
    for (k = 0; k < p->in[0]->shape.rank; i /= n[k], k++) {
        const struct chunk *t = &along[k][i % n[k]];

        copy_add_axis(&part->fwd, t->laps, 0, (ptrdiff_t)t->lap * to[k]);
        copy_add_axis(&part->fwd, t->size, (ptrdiff_t)t->step * from[k], to[k]);
        if (t->size == 0)
            continue;
        part->fwd.from += (ptrdiff_t)t->x * from[k];
        part->fwd.to += (ptrdiff_t)t->y * to[k];
    }
    part_finish(part);
}

static int pad_plan(struct op_plan *p, struct err *err)
{
    const struct pad *c = p->param;
    const struct shape *x = &p->in[0]->shape;
    struct chunk along[TENSOR_MAX_RANK][MAX_CHUNKS];
    uint32_t n[TENSOR_MAX_RANK], total = 1, i, k;
    struct parts *s;

    for (k = 0; k < x->rank; k++) {
        n[k] = chunks(c, k, x->dim[k], along[k]);
        total *= n[k];
    }
    if (total > PARTS)
        return err_set(err, ERR_UNSUPPORTED, "Pad '%s': too many axes are padded by more than they "
                       "have: write it as several nodes", p->node);
    s = parts_new(p, total, err);
    if (s == NULL)
        return ERR_NOMEM;
    for (i = 0; i < total; i++)
        make_part(p, along, n, i, &s->at[i]);
    s->fills = c->mode == PAD_CONSTANT;
    s->fill_in = 2;
    s->gaps = false;
    for (k = 0; k < x->rank; k++)
        s->gaps = s->gaps || n[k] > 1 || c->before[k] < 0 || c->behind[k] < 0;
    return 0;
}

/* Treats the attribute `value` as input 2. */
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
