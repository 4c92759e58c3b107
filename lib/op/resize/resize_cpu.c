/* resize_cpu.c - one pass for each axis whose size changes; see resize.c for the formulas.
 *
 * The axes before the first such axis in memory are a batch of items. Each item goes through all
 * passes in sequence while it is in cache. An axis that shrinks is processed before one that grows.
 * Forward and backward are the same loops over a table and its transpose: the sum over the taps of
 * a row runs from the first to the last in any layout. */
#include <stdlib.h>

#include "base/err.h"
#include "op/op_priv.h"
#include "op/resize/resize_priv.h"

enum { STRIP = 1024 }; /* floats of a sum that fit the L1 cache */

/* ---- plan ---- */

/* Returns true if axis a, which follows b in memory, is processed before it. The axis that shrinks
 * most is first. Of equal ones the last if they grow, else the first: elements of the last axis are
 * processed one by one, those of other axes in lines, which is faster. */
static bool goes_first(const struct resize_axis *a, const struct resize_axis *b)
{
    double grows = (double)a->out / (double)a->in, other = (double)b->out / (double)b->in;

    return grows < other || (grows == other && grows >= 1);
}

/* Returns the number of axes whose size changes, and their indices in `memory` in the order of
 * processing. */
static uint32_t order_of(const struct resize_param *p, const uint32_t *memory, uint32_t rank,
                         uint32_t *order)
{
    uint32_t n = 0, k, at;

    for (k = 0; k < rank; k++) {
        const struct resize_axis *a = &p->axis[memory[k]];

        if (a->scale == 1 && !a->cropped)
            continue;
        for (at = n++; at > 0 && goes_first(a, &p->axis[memory[order[at - 1]]]); at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
    return n;
}

static int make_passes(struct resize_state *s, const struct op_plan *p, struct err *err)
{
    const struct resize_param *c = p->param;
    uint32_t memory[TENSOR_MAX_RANK], order[TENSOR_MAX_RANK], rank = p->in[0]->shape.rank, first;
    size_t dim[TENSOR_MAX_RANK];
    uint32_t k, i;
    int rc = 0;

    op_memory_order(p->in[0], memory);
    s->n = order_of(c, memory, rank, order);
    for (k = 0; k < rank; k++)
        dim[k] = (size_t)c->axis[memory[k]].in;
    for (k = 0, first = s->n > 0 ? rank : 0; k < s->n; k++)
        first = order[k] < first ? order[k] : first;
    for (k = 0, s->items = s->item_in = 1; k < rank; k++)
        *(k < first ? &s->items : &s->item_in) *= dim[k];
    s->item_out = s->item_in;
    for (i = 0; i < s->n && rc == 0; i++) {
        const struct resize_axis *a = &c->axis[memory[order[i]]];
        struct resize_pass *at = &s->pass[i];

        at->place = order[i];
        at->outer = at->inner = 1;
        at->in = (size_t)a->in;
        at->out = (size_t)a->out;
        for (k = first; k < rank; k++)
            if (k != order[i])
                *(k < order[i] ? &at->outer : &at->inner) *= dim[k];
        dim[order[i]] = at->out;
        s->item_out = at->outer * at->out * at->inner;
        if (i + 1 < s->n)
            s->between = op_max(s->between, s->item_out);
        rc = resize_map_make(c, a, &at->fwd, err);
        if (rc == 0 && op_wants(p, 0))
            rc = resize_map_transpose(&at->fwd, at->in, &at->bwd, err);
    }
    return rc;
}

void resize_cpu_free(void *state)
{
    struct resize_state *s = state;
    uint32_t i;

    for (i = 0; s != NULL && i < s->n; i++) {
        resize_map_fini(&s->pass[i].fwd);
        resize_map_fini(&s->pass[i].bwd);
    }
    free(s);
}

static size_t between_bytes(const struct resize_state *s, size_t size)
{
    return op_round(s->between * size);
}

int resize_cpu_plan(struct op_plan *p, struct err *err)
{
    struct resize_state *s = calloc(1, sizeof(*s));
    int rc = 0;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    if (tensor_elements(&p->out[0]) > 0)
        rc = make_passes(s, p, err);
    if (rc < 0) {
        resize_cpu_free(s);
        return rc;
    }
    p->state = s;
    p->scratch_bytes = 2 * between_bytes(s, tensor_dtype_bytes(p->in[0]->dtype));
    return 0;
}

/* ---- weighted sums ---- */

/* to [n] = or += the weighted sum of lines of x that are `step` apart. */
CLONES static void mix(float *restrict to, const float *x, size_t step, const float *w, size_t taps,
                       size_t n, bool add)
{
    size_t i, t = 0;

    if (!add && taps >= 2) {
        for (i = 0; i < n; i++)
            to[i] = w[0] * x[i] + w[1] * x[step + i];
        t = 2;
    } else if (!add) {
        for (i = 0; i < n; i++)
            to[i] = w[0] * x[i];
        t = 1;
    }
    for (; t < taps; t++)
        for (i = 0; i < n; i++)
            to[i] += w[t] * x[t * step + i];
}

static void mix_rows(const struct resize_map *m, const float *x, size_t inner, float *y, bool add)
{
    size_t j, i, n;

    for (j = 0; j < m->n; j++, y += inner) {
        const struct resize_row *r = &m->row[j];

        if (r->n == 0 && !add)
            memset(y, 0, inner * sizeof(*y));
        for (i = 0; i < inner && r->n > 0; i += n) {
            n = inner - i < STRIP ? inner - i : STRIP;
            mix(y + i, x + r->at * inner + i, inner, m->w + r->w, r->n, n, add);
        }
    }
}

/* Does what mix_rows() does, for rows of one element. */
static void mix_elements(const struct resize_map *m, const float *x, float *y, bool add)
{
    size_t j, t;

    for (j = 0; j < m->n; j++) {
        const struct resize_row *r = &m->row[j];
        const float *w = m->w + r->w, *from = x + r->at;
        float sum = add ? y[j] : 0;

        if (!add && r->n == 2) {
            y[j] = w[0] * from[0] + w[1] * from[1];
            continue;
        }
        for (t = 0; t < r->n; t++)
            sum += w[t] * from[t];
        y[j] = sum;
    }
}

static void run(const struct resize_pass *p, const struct resize_map *m, size_t from,
                const float *x, float *y, bool add)
{
    size_t o;

    for (o = 0; o < p->outer; o++, x += from * p->inner, y += m->n * p->inner) {
        if (p->inner > 1)
            mix_rows(m, x, p->inner, y, add);
        else
            mix_elements(m, x, y, add);
    }
}

/* ---- nearest, forward: any type ---- */

#define PICK(type_)                                                                                \
    do {                                                                                           \
        const type_ *from = x;                                                                     \
        type_ *to = y;                                                                             \
                                                                                                   \
        for (j = 0; j < m->n; j++)                                                                 \
            to[j] = m->row[j].n > 0 ? from[m->row[j].at] : 0;                                      \
    } while (0)

/* Selects rows of `bytes` bytes. */
static void pick_rows(const struct resize_map *m, const void *x, size_t bytes, void *y)
{
    size_t j;

    switch (bytes) {
    case 1: PICK(uint8_t); return;
    case 2: PICK(uint16_t); return;
    case 4: PICK(uint32_t); return;
    case 8: PICK(uint64_t); return;
    default: break;
    }
    for (j = 0; j < m->n; j++) {
        char *to = (char *)y + j * bytes;

        if (m->row[j].n > 0)
            memcpy(to, (const char *)x + m->row[j].at * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
}

static void pick(const struct resize_pass *p, const void *x, size_t size, void *y)
{
    size_t line = p->inner * size, o;

    for (o = 0; o < p->outer; o++)
        pick_rows(&p->fwd, (const char *)x + o * p->in * line, line, (char *)y + o * p->out * line);
}

/* Stores `value` outside of the input along any axis. y is one item. */
static void fill_outside(const struct resize_state *s, float value, float *y)
{
    size_t in_front, o, j, k;
    uint32_t i;

    for (i = 0; i < s->n; i++) {
        const struct resize_pass *p = &s->pass[i];
        size_t line = resize_line(s, i);

        in_front = s->item_out / (p->out * line);
        for (o = 0; o < in_front; o++)
            for (j = 0; j < p->out; j++)
                for (k = 0; p->fwd.row[j].n == 0 && k < line; k++)
                    y[(o * p->out + j) * line + k] = value;
    }
}

/* ---- kernels ---- */

int resize_cpu_fwd(const struct op_call *c, struct err *err)
{
    const struct resize_state *s = c->state;
    const struct resize_param *p = c->param;
    size_t size = tensor_dtype_bytes(c->in[0]->dtype), item;
    const char *x = c->in[0]->data;
    char *y = c->out[0]->data;
    uint32_t i;

    (void)err; /* cannot fail */
    for (item = 0; item < s->items; item++, x += s->item_in * size, y += s->item_out * size) {
        const void *from = x;

        if (s->n == 0)
            memcpy(y, x, s->item_in * size);
        for (i = 0; i < s->n; i++) {
            void *to = i + 1 == s->n ? y : op_at(c->scratch, i % 2 * between_bytes(s, size));

            if (p->filter == NULL)
                pick(&s->pass[i], from, size, to);
            else
                run(&s->pass[i], &s->pass[i].fwd, s->pass[i].in, from, to, false);
            from = to;
        }
        if (p->outside != 0)
            fill_outside(s, p->outside, (float *)(void *)y);
    }
    return 0;
}

int resize_cpu_bwd(const struct op_call *c, struct err *err)
{
    const struct resize_state *s = c->state;
    bool add = op_adds(c, 0);
    const float *dy;
    size_t item;
    uint32_t i;
    float *dx;

    (void)err; /* cannot fail */
    if (c->dout[0] == NULL || c->din[0] == NULL || s->items == 0) {
        op_bwd_zero(c);
        return 0;
    }
    dy = c->dout[0]->data;
    dx = c->din[0]->data;
    for (item = 0; item < s->items; item++, dy += s->item_out, dx += s->item_in) {
        const float *from = dy;

        if (s->n == 0)
            op_store(dx, dy, s->item_in, 1, add);
        for (i = s->n; i-- > 0;) {
            float *to = i == 0 ? dx : op_at(c->scratch, i % 2 * between_bytes(s, sizeof(*to)));

            run(&s->pass[i], &s->pass[i].bwd, s->pass[i].out, from, to, i == 0 && add);
            from = to;
        }
    }
    return 0;
}
