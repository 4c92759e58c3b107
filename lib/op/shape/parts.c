#include "op/shape/parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "op/half.h"

struct parts *parts_new(struct op_plan *p, uint32_t n, struct err *err)
{
    struct parts *s = calloc(1, sizeof(*s) + n * sizeof(s->at[0]));

    if (s == NULL) {
        (void)err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
        return NULL;
    }
    s->n = n;
    s->fill_in = UINT32_MAX;
    p->state = s;
    return s;
}

void part_finish(struct part *part)
{
    copy_finish(&part->fwd);
    part->bwd = copy_back(&part->fwd);
}

void part_box(struct part *part, const struct tensor *x, const struct tensor *y,
              const int64_t *size, const int64_t *x_start, const int64_t *x_step,
              const int64_t *y_start)
{
    ptrdiff_t from[TENSOR_MAX_RANK], to[TENSOR_MAX_RANK];
    uint32_t k;

    op_strides(x, from);
    op_strides(y, to);
    for (k = 0; k < x->shape.rank; k++) {
        ptrdiff_t step = x_step != NULL && size[k] > 1 ? (ptrdiff_t)x_step[k] : 1;

        if (size[k] > 0) {
            part->fwd.from += x_start != NULL ? (ptrdiff_t)x_start[k] * from[k] : 0;
            part->fwd.to += y_start != NULL ? (ptrdiff_t)y_start[k] * to[k] : 0;
        }
        copy_add_axis(&part->fwd, size[k], step * from[k], to[k]);
    }
    part_finish(part);
}

/* Sets every element of y to the one at `value`; NULL: to zero. */
static void fill(const struct tensor *y, const char *value)
{
    size_t size = tensor_dtype_bytes(y->dtype), n = (size_t)tensor_elements(y), i;
    char *to = y->data;

    if (value == NULL)
        memset(to, 0, n * size);
    for (i = 0; value != NULL && i < n; i++)
        memcpy(to + i * size, value, size);
}

int parts_fwd(const struct op_call *c, struct err *err)
{
    const struct parts *s = c->state;
    const struct tensor *value = s->fill_in < c->n_in ? c->in[s->fill_in] : NULL;
    uint32_t i;

    (void)err;
    for (i = 0; s->fills && i < c->n_out; i++)
        if (c->out[i] != NULL)
            fill(c->out[i], value != NULL ? value->data : NULL);
    for (i = 0; i < s->n; i++) {
        const struct part *p = &s->at[i];

        if (c->out[p->out] != NULL)
            copy_run(&p->fwd, c->in[p->in]->data, c->out[p->out]->data,
                     tensor_dtype_bytes(c->in[p->in]->dtype));
    }
    return 0;
}

int parts_bwd(const struct op_call *c, struct err *err)
{
    const struct parts *s = c->state;
    bool gaps = s->gaps;
    uint32_t i;

    (void)err;
    for (i = 0; i < c->n_out; i++)
        gaps = gaps || c->dout[i] == NULL;
    if (gaps)
        op_bwd_zero(c);
    for (i = 0; i < s->n; i++) {
        const struct part *p = &s->at[i];
        const struct tensor *dx = c->din[p->in], *dy = c->dout[p->out];

        if (dx == NULL || dy == NULL)
            continue;
        if (gaps || op_adds(c, p->in))
            (op_is_half(dx) ? copy_run_add_half : copy_run_add)(&p->bwd, dy->data, dx->data);
        else
            copy_run(&p->bwd, dy->data, dx->data, tensor_dtype_bytes(dx->dtype));
    }
    return 0;
}
