/* attention_plan.c - creates the products for each block size, and lays out the scratch area. */
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "op/attention/attention.h"
#include "op/attention/attention_cpu.h"
#include "op/dnn.h"
#include "op/half.h"
#include "op/op_priv.h"

static void free_products(struct attention_products *p)
{
    dnn_free(p->scores);
    dnn_free(p->y);
    dnn_free(p->dp);
    dnn_free(p->dv);
    dnn_free(p->dq);
    dnn_free(p->dk);
}

void attention_cpu_free(void *state)
{
    struct attention_state *s = state;
    size_t i;

    if (s == NULL)
        return;
    for (i = 0; i < s->n_products; i++)
        free_products(&s->products[i]);
    free(s->products);
    free(s->seen);
    free(s->whole);
    free(s);
}

static int make_products(const struct op_plan *op, struct attention_products *p, struct err *err)
{
    const struct attention *a = op->param;
    const int64_t n = a->group, rows = p->rows * a->shared, keys = p->keys;
    const struct {
        struct dnn **out;
        bool is_wanted;
        struct dnn_matmul product;
    } all[] = {
        { &p->scores, true, { .m = rows, .n = keys, .k = a->d, .trans_b = true } },
        { &p->y, true, { .m = rows, .n = a->dv, .k = keys } },
        { &p->dp, op->training, { .m = rows, .n = keys, .k = a->dv, .trans_b = true } },
        { &p->dv, op_wants(op, a->of[2]),
          { .m = keys, .n = a->dv, .k = rows, .trans_a = true, .add = true } },
        { &p->dq, op_wants(op, a->of[0]), { .m = rows, .n = a->d, .k = keys } },
        { &p->dk, op_wants(op, a->of[1]),
          { .m = keys, .n = a->d, .k = rows, .trans_a = true, .add = true } },
    };
    size_t i;

    for (i = 0; i < COUNT_OF(all); i++) {
        struct dnn_matmul m = all[i].product;
        int rc;

        m.batch = n;
        m.a = m.b = op->out[0].dtype;
        rc = all[i].is_wanted ? dnn_matmul(&m, all[i].out, err) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Returns in *out the index of the products for blocks of this size; creates them if necessary. */
static int find_products(const struct op_plan *op, struct attention_state *s, int64_t rows,
                         int64_t keys, size_t *out, struct err *err)
{
    struct attention_products *p;

    for (*out = 0; *out < s->n_products; (*out)++)
        if (s->products[*out].rows == rows && s->products[*out].keys == keys)
            return 0;
    p = &s->products[s->n_products++];
    *p = (struct attention_products){ .rows = rows, .keys = keys };
    return make_products(op, p, err);
}

static int all_products(const struct op_plan *op, struct attention_state *s, struct err *err)
{
    const struct attention *a = op->param;
    int64_t b;
    int rc = 0;

    s->products = calloc(2 * (size_t)a->n_blocks, sizeof(*s->products));
    s->seen = calloc((size_t)a->n_blocks, sizeof(*s->seen));
    s->whole = calloc((size_t)a->n_blocks, sizeof(*s->whole));
    if (s->products == NULL || s->seen == NULL || s->whole == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (b = 0; b < a->n_blocks && rc == 0; b++) {
        const struct attention_range *keys = &a->seen[b];
        int64_t rows = attention_rows_of(a, b);

        rc = find_products(op, s, rows, keys->end - keys->first, &s->seen[b], err);
        if (rc == 0)
            rc = find_products(op, s, rows, a->s, &s->whole[b], err);
    }
    return rc;
}

/* Reserves n floats in scratch and returns their offset. */
static size_t reserve(size_t *bytes, int64_t n)
{
    size_t at = *bytes;

    *bytes += op_round((size_t)n * sizeof(float));
    return at;
}

static size_t pad_bytes(const struct attention_state *s)
{
    size_t most = 0, i;

    for (i = 0; i < s->n_products; i++) {
        const struct attention_products *p = &s->products[i];
        const struct dnn *all[] = { p->scores, p->y, p->dp, p->dv, p->dq, p->dk };
        size_t k;

        for (k = 0; k < COUNT_OF(all); k++)
            most = op_max(most, dnn_scratch_bytes(all[k]));
    }
    return most;
}

static size_t plan_scratch(const struct attention *a, bool training, struct attention_state *s)
{
    const int64_t g = a->group, q = g * a->shared, bwd = training ? g : 0,
                  half = s->is_half ? 1 : 0;
    size_t bytes = 0;

    s->at.max = reserve(&bytes, training ? 0 : 2 * a->n * a->t);
    s->at.k = reserve(&bytes, g * a->s * a->d);
    s->at.v = reserve(&bytes, g * a->s * a->dv);
    s->at.dk = reserve(&bytes, bwd * a->s * a->d);
    s->at.dv = reserve(&bytes, bwd * a->s * a->dv);
    s->at.q = reserve(&bytes, q * a->rows * a->d);
    s->at.y = reserve(&bytes, q * a->rows * a->dv);
    s->at.dq = reserve(&bytes, bwd * a->shared * a->rows * a->d);
    s->at.scores = reserve(&bytes, q * a->rows * a->s);
    s->at.dp = reserve(&bytes, bwd * a->shared * a->rows * a->s);
    s->at.dot = reserve(&bytes, bwd * a->shared * a->rows);
    s->at.keep = reserve(&bytes, a->s); /* one float per byte: more than needed */
    s->at.capped = reserve(&bytes, training && a->has_cap ? a->s : 0);
    s->at.weights = reserve(&bytes, half * q * a->rows * a->s);
    s->at.slopes = reserve(&bytes, half * bwd * a->shared * a->rows * a->s);
    s->at.pad = bytes;
    return bytes + pad_bytes(s);
}

int attention_cpu_plan(struct op_plan *p, struct err *err)
{
    struct attention_state *s = calloc(1, sizeof(*s));
    const struct attention *a = p->param;
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Attention '%s': out of memory", p->node);
    rc = all_products(p, s, err);
    if (rc < 0) {
        attention_cpu_free(s);
        return err_wrap(err, rc, "Attention '%s'", p->node);
    }
    s->has_save = p->training;
    s->is_half = op_is_half(&p->out[0]);
    p->save_bytes = p->training ? 2 * (size_t)(a->n * a->t) * sizeof(float) : 0;
    p->scratch_bytes = plan_scratch(a, p->training, s);
    p->state = s;
    return 0;
}
