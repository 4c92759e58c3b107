/* refused.c - see refused.h. */
#include "engine/refused.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "data/data.h"
#include "engine/engine.h"
#include "engine/plans.h"
#include "graph/graph.h"
#include "op/op.h"

enum { NOT_FOUND = UINT32_MAX };

static bool has_value(const struct tensor *t, const void *data, size_t first, size_t n,
                      int64_t value)
{
    for (size_t i = first; i < first + n; i++)
        if (value ==
            (t->dtype == TENSOR_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i]))
            return true;
    return false;
}

/* Returns the input whose sample has the value. */
static uint32_t find_input(const struct engine *e, struct plan *plan, const struct data_batch *b,
                           uint32_t sample, int64_t value)
{
    for (uint32_t i = 0; i < e->opts->plan->n_feeds; i++) {
        const struct tensor *t = plan_input(plan, i);
        size_t n;

        if (t->dtype != TENSOR_I64 && t->dtype != TENSOR_I32)
            continue;
        n = (size_t)shape_elements(&t->shape) / e->opts->lane_batch;
        if (has_value(t, b->features[e->opts->features[i]], sample * n, n, value))
            return i;
    }
    return NOT_FOUND;
}

/* The samples of an operand are usually consecutive. An operand in another order has the value in one sample, or the
 * sample is not known. *input NOT_FOUND: the index is computed. */
static uint32_t find_sample(const struct engine *e, struct plan *plan, const struct data_batch *b,
                            const struct op_invalid *found, uint32_t *input)
{
    uint64_t n = plan_n_indices(plan, found->call), batch = e->opts->lane_batch;
    uint32_t only = NOT_FOUND, first = NOT_FOUND, n_found = 0;

    if (n % batch == 0 && found->at < n) {
        first = (uint32_t)(found->at / (n / batch));
        *input = find_input(e, plan, b, first, found->value);
        if (*input != NOT_FOUND)
            return first;
    }
    for (uint32_t i = 0; i < batch; i++)
        if (find_input(e, plan, b, i, found->value) != NOT_FOUND) {
            only = i;
            n_found++;
        }
    *input = n_found == 1 ? find_input(e, plan, b, only, found->value) : NOT_FOUND;
    return n_found == 1 ? only : n_found == 0 ? first : NOT_FOUND;
}

int refused_place(const struct engine_replica *r, struct plan *plan, const struct data_set *set,
                  const struct data_batch *b, const struct op_invalid *found, int rc,
                  struct err *err)
{
    uint32_t input = NOT_FOUND, sample = find_sample(r->engine, plan, b, found, &input);
    char place[256];
    struct err why;

    if (err == NULL || sample == NOT_FOUND)
        return rc;
    why = *err;
    data_sample_place(set, b->samples[sample],
                      input != NOT_FOUND ? r->engine->opts->features[input] : DATA_ANY_FEATURE,
                      place, sizeof(place));
    if (input == NOT_FOUND)
        return err_set(err, rc, "%s; the model computes it from %s", why.text, place);
    return err_set(err, rc, "%s; input '%s' has %" PRId64 " in %s", why.text,
                   plan_input_name(plan, input), found->value, place);
}

int refused_place_lane(struct engine_replica *r, uint64_t step, const struct op_invalid *found,
                       int rc, struct err *err)
{
    const struct data_batch *b;
    struct data_reader *reader;

    if (plans_open_lane(r, step, found->lane, &reader, NULL) < 0)
        return rc;
    if (data_next(reader, &b, NULL) == 0 && b != NULL)
        rc = refused_place(r, r->plans->train, r->engine->opts->data, b, found, rc, err);
    data_reader_close(reader);
    return rc;
}
