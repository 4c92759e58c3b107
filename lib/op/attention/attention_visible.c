/* attention_visible.c - determines which keys a block of rows sees, and the largest weight of the
 * others. */
#include <math.h>

#include "base/arena.h"
#include "base/err.h"
#include "op/attention/attention.h"
#include "op/simd.h"
#include "op/op_priv.h"

/* key ranges are rounded to 1/16 of the keys, because each size needs a kernel */
enum { RANGE_STEPS = 16 };

/* Returns true if step i can hide keys: the later steps must not turn low numbers into high
 * ones. */
static bool can_hide(const struct attention *a, uint32_t i)
{
    const struct attention_step *s = &a->step[i];
    uint32_t k;

    if (!attention_has_mask(s) || !s->is_known)
        return false;
    for (k = i + 1; k < a->n_steps; k++)
        if (a->step[k].kind == ATTENTION_CAP ||
            (a->step[k].kind == ATTENTION_SCALE && !(a->step[k].number > 0)))
            return false;
    return s->kind == ATTENTION_ADD || s->number <= -1000;
}

static bool hides(const struct attention_step *s, const void *data, size_t i)
{
    if (s->kind == ATTENTION_ADD)
        return ((const float *)data)[i] <= ATTENTION_HIDDEN;
    return (((const uint8_t *)data)[i] != 0) == (s->kind == ATTENTION_FILL);
}

/* Returns the keys that some row of [row, end) sees through the mask of step s, in any matrix. */
static struct attention_range seen_through(const struct attention *a,
                                           const struct attention_step *s, const struct tensor *t,
                                           int64_t row, int64_t end)
{
    struct attention_range seen = { a->s, 0 };
    int64_t own = s->at.row == 0 ? 1 : a->t, matrices = tensor_elements(t) / (own * a->s), m, r;

    for (m = 0; m < matrices; m++)
        for (r = s->at.row == 0 ? 0 : row; r < (s->at.row == 0 ? 1 : end); r++) {
            size_t at = (size_t)((m * own + r) * a->s);
            int64_t j = 0;

            while (j < seen.first && hides(s, t->data, at + (size_t)j))
                j++;
            if (j < seen.first)
                seen.first = j;
            for (j = a->s; j > seen.end && hides(s, t->data, at + (size_t)j - 1);)
                j--;
            if (j > seen.end)
                seen.end = j;
        }
    return seen;
}

/* Returns true if mask i is a constant that only hides from each row the keys after its own. */
static bool is_causal(const struct op_infer *f, const struct attention *a, uint32_t i)
{
    const struct attention_step *s = &a->step[i];
    const struct tensor *t = attention_has_mask(s) ? f->in[s->input] : NULL;
    bool adds = s->kind == ATTENTION_ADD;
    int64_t row, key;

    if (t == NULL || !s->is_known || tensor_elements(t) != a->t * a->s ||
        (a->t > 1 && s->at.row == 0) || (!adds && !(s->number <= ATTENTION_BURIED)))
        return false;
    for (row = 0; row < a->t; row++)
        for (key = 0; key < a->s; key++) {
            size_t at = (size_t)(row * a->s + key);
            float added = adds ? ((const float *)t->data)[at] : 0;
            bool hidden = adds ? added <= ATTENTION_BURIED : hides(s, t->data, at);

            if (hidden != (key > row) || (!hidden && added != 0))
                return false;
        }
    return true;
}

/* Returns true if the keys that a causal mask hides get scores that no visible key can have. */
static bool hides_all(const struct attention_step *s, const struct tensor *t)
{
    int64_t i, n = tensor_elements(t);

    if (s->kind != ATTENTION_ADD)
        return s->number <= ATTENTION_HIDDEN;
    for (i = 0; i < n; i++)
        if (((const float *)t->data)[i] != 0 && !hides(s, t->data, (size_t)i))
            return false;
    return true;
}

/* Replaces a causal mask that is the only mask by the band {-inf, 0}: each row sees its own key,
 * beside which the hidden ones have weight 0. (Beside another mask, the hidden keys may be the only
 * visible ones: see attention.c.) */
static void causal_band(const struct op_infer *f, struct attention *a)
{
    uint32_t i, masks = 0, which = 0;

    for (i = 0; i < a->n_steps; i++)
        if (attention_has_mask(&a->step[i])) {
            masks++;
            which = i;
        }
    if (masks != 1 || a->has_band || which + 1 != a->n_steps || !a->step[which].is_causal ||
        !hides_all(&a->step[which], f->in[a->step[which].input]))
        return;
    a->has_band = true;
    a->lower = -ATTENTION_FAR;
    a->upper = 0;
    a->n_steps--;
}

int attention_visible(const struct op_infer *f, struct attention *a, struct err *err)
{
    struct attention_range *seen = arena_array(f->mem, (size_t)a->n_blocks, sizeof(*seen));
    int64_t unit = (a->s + RANGE_STEPS - 1) / RANGE_STEPS, b;
    uint32_t i;

    if (seen == NULL)
        return op_error(f, ERR_NOMEM, err, "key ranges: out of memory");
    for (i = 0; i < a->n_steps; i++)
        a->step[i].is_causal = is_causal(f, a, i);
    causal_band(f, a);
    unit = (unit + 15) / 16 * 16;
    for (b = 0; b < a->n_blocks; b++) {
        int64_t row = b * a->rows, end = row + a->rows < a->t ? row + a->rows : a->t;
        struct attention_range r = { 0, a->s };

        if (a->has_band && a->group == 1) {
            r.first = row + a->lower > 0 ? row + a->lower : 0;
            r.end = end + a->upper < a->s ? end + a->upper : a->s;
            r = r.first < r.end ? r : (struct attention_range){ 0, 1 };
        }
        for (i = 0; i < a->n_steps && a->group == 1; i++) {
            struct attention_range one;

            if (!can_hide(a, i))
                continue;
            one = seen_through(a, &a->step[i], f->in[a->step[i].input], row, end);
            if (one.first > r.first)
                r.first = one.first;
            if (one.end < r.end)
                r.end = one.end;
            a->hiding |= 1u << i;
        }
        r.first = r.first / unit * unit;
        r.end = (r.end + unit - 1) / unit * unit;
        r.end = r.end < a->s ? r.end : a->s;
        seen[b] = r.first < r.end ? r : (struct attention_range){ 0, a->s };
    }
    a->seen = seen;
    return 0;
}

float attention_masked(const struct op_call *c, const struct attention *a)
{
    float most = -INFINITY;
    uint32_t i, k;

    for (i = 0; i < a->n_steps; i++) {
        /* Assume half of the number that hides: any score beside it is far smaller. */
        float x = a->step[i].kind == ATTENTION_ADD ? ATTENTION_HIDDEN / 2 : a->step[i].number;

        if ((a->hiding & (1u << i)) == 0)
            continue;
        for (k = i + 1; k < a->n_steps; k++) {
            const struct attention_step *s = &a->step[k];
            const struct tensor *mask = attention_has_mask(s) ? c->in[s->input] : NULL;

            if (s->kind == ATTENTION_SCALE)
                x *= s->number;
            else if (s->kind == ATTENTION_ADD)
                x += s->is_known ? s->most : op_row_max(mask->data, (size_t)tensor_elements(mask));
            else if (x < s->number)
                x = s->number;
        }
        if (!(x <= most))
            most = isnan(x) ? INFINITY : x; /* -inf and inf: the values are unknown, so nothing
                                               outweighs them */
    }
    return most;
}
