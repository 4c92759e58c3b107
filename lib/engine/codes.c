/* codes.c - see codes.h. */
#include "engine/codes.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/err.h"
#include "code/map.h"
#include "comm/comm.h"
#include "engine/common.h"
#include "engine/cpu_types.h"
#include "engine/residual.h"
#include "graph/graph.h"

static const struct code_settings *settings(const struct engine *e)
{
    return e->opts->code;
}

/* Lanes are divided into equal groups, which are powers of two (coding_check()). */
static uint32_t group_lanes(const struct engine *e)
{
    return e->opts->lanes / settings(e)->groups;
}

/* Small parameters stay float32, and so do the gaps between parameters beside them. */
static void leave_small_raw(struct engine *e)
{
    uint32_t n;
    const struct graph_param *params = graph_params(e->opts->graph, &n);

    for (uint32_t i = 0; i < n; i++)
        if (params[i].elements * sizeof(float) < settings(e)->min_bytes)
            code_map_raw(e->codes, params[i].offset, params[i].offset + params[i].elements);
    code_map_index(e->codes);
}

int codes_open(struct engine *e, struct err *err)
{
    if (settings(e) == NULL || settings(e)->kind == CODE_NONE ||
        code_keeps_residuals(settings(e)->kind))
        return 0;
    CHECK(settings(e)->groups > 0 && e->opts->lanes % settings(e)->groups == 0);
    e->codes = calloc(1, sizeof(*e->codes));
    if (e->codes == NULL)
        return err_set(err, ERR_NOMEM, "codes of gradients: out of memory");
    if (code_map_open(e->codes, settings(e)->kind, graph_dense_floats(e->opts->graph), err) < 0)
        return ERR_NOMEM;
    leave_small_raw(e);
    return 0;
}

void codes_close(struct engine *e)
{
    if (e->codes != NULL)
        code_map_close(e->codes);
    free(e->codes);
    e->codes = NULL;
}

void codes_note(const struct engine *e)
{
    size_t dense;
    char text[256];

    if (e->codes == NULL && !residual_exists(e))
        return;
    dense = graph_dense_floats(e->opts->graph);
    if (residual_is_on(e)) {
        residual_note(e);
        return;
    }
    if (codes_are_on(e))
        snprintf(text, sizeof(text),
                 "gradients are coded as %s between %u groups of %u lanes: %.1f %% of the numbers are in "
                 "parameters of at least %llu bytes, the others stay float32",
                 code_name(e->codes->kind), settings(e)->groups, group_lanes(e),
                 dense > 0 ? 100.0 * (double)code_map_coded(e->codes) / (double)dense : 0.0,
                 (unsigned long long)settings(e)->min_bytes);
    else
        snprintf(text, sizeof(text),
                 "gradients are not coded: the first step of this job was reduced on one host, and "
                 "/communication/compression/when is \"network\"");
    engine_note(e, false, text);
}

int codes_keep(struct engine_replica *r, struct err *err)
{
    const struct engine *e = r->engine;
    struct kept_codes *k = &cpu_of(r)->codes;

    if (!codes_are_on(e) || e->group.comm == NULL)
        return 0;
    k->n = comm_kept_codes(e->group.comm, r->local, e->codes->kind);
    if (k->n == 0)
        return 0;
    CHECK(k->n <= COUNT_OF(k->at));
    k->bytes = code_map_coded_before(e->codes, e->memory.dense);
    k->memory = malloc(k->n * k->bytes + 1); /* never 0 bytes */
    if (k->memory == NULL)
        return err_set(err, ERR_NOMEM, "codes of %u groups of %zu bytes: out of memory", k->n,
                       k->bytes);
    for (uint32_t g = 0; g < k->n; g++)
        k->at[g] = k->memory + g * k->bytes;
    return 0;
}

void codes_free(struct engine_replica *r)
{
    free(cpu_of(r)->codes.memory);
    cpu_of(r)->codes = (struct kept_codes){ 0 };
}

const uint8_t *const *codes_kept(const struct engine_replica *r)
{
    return cpu_of(r)->codes.n > 0 ? cpu_of(r)->codes.at : NULL;
}

bool codes_are_on(const struct engine *e)
{
    return e->codes != NULL && e->group.codes;
}

struct code_key codes_key(const struct engine *e, uint64_t step)
{
    return (struct code_key){ .seed = e->opts->seed, .step = (uint32_t)step };
}

bool codes_ends_group(const struct engine_replica *r, uint32_t lane, uint32_t *merges)
{
    uint32_t group;

    if (!codes_are_on(r->engine) && !residual_is_on(r->engine))
        return false;
    group = group_lanes(r->engine);
    *merges = (uint32_t)__builtin_ctz(group);
    return (r->n_lanes > group || residual_is_on(r->engine)) && (lane + 1) % group == 0;
}

void codes_round_group(const struct engine_replica *r, uint64_t step, uint32_t lane, float *grads,
                       size_t begin, size_t end)
{
    const struct engine *e = r->engine;
    const struct kept_codes *k = &cpu_of(r)->codes;
    struct code_key key = codes_key(e, step);
    uint8_t *codes = NULL;

    key.place = (r->first_lane + lane) / group_lanes(e);
    if (k->n > 0)
        codes =
            k->memory + lane / group_lanes(e) * k->bytes + code_map_coded_before(e->codes, begin);
    code_map_round(e->codes, &key, grads + begin, begin, end, codes);
}

void codes_round_all(const struct engine_replica *r, uint64_t step)
{
    const struct engine *e = r->engine;
    struct code_key key = codes_key(e, step);
    float *grads = r->arenas->grads[0];

    if (!codes_are_on(e))
        return;
    if (r->n_lanes == group_lanes(e)) /* one group, which no earlier lane has ended */
        code_map_round(e->codes, &key, grads, 0, e->memory.grads, NULL);
    key.place = settings(e)->groups;
    code_map_round(e->codes, &key, grads, 0, e->memory.grads, NULL);
}
