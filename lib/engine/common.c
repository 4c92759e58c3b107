/* common.c - see common.h. */
#include "engine/common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/err.h"
#include "engine/lanes.h"

int engine_init(struct engine *e, const struct engine_ops *ops, const struct engine_opts *opts,
                struct err *err)
{
    e->ops = ops;
    e->opts = opts;
    e->n_states = 1;
    e->eval_words = ENGINE_SUM_METRICS;
    e->memory = (struct memory){ .own = { .fd = -1 }, .region = { .fd = -1 } };
    e->replicas = calloc(opts->n_devices, sizeof(struct engine_replica *));
    for (uint32_t i = 0; e->replicas != NULL && i < opts->n_devices; i++) {
        struct engine_replica *r = calloc(1, sizeof(*r));

        if (r == NULL)
            return err_set(err, ERR_NOMEM, "replica: out of memory");
        e->replicas[i] = r;
        r->engine = e;
        r->local = i;
        r->n_buckets = 1;
        r->scale = 1;
    }
    return e->replicas != NULL ? 0 : err_set(err, ERR_NOMEM, "replicas: out of memory");
}

void engine_fini(struct engine *e)
{
    for (uint32_t i = 0; e->replicas != NULL && i < e->opts->n_devices; i++)
        free(e->replicas[i]);
    free(e->replicas);
    e->replicas = NULL;
    engine_memory_close(&e->memory);
}

int engine_open_memory(struct engine *e, struct memory_opts *o, struct err *err)
{
    const struct engine_opts *opts = e->opts;
    int rc;

    o->n_replicas = opts->n_devices;
    o->is_shared = opts->max_replicas > opts->n_devices;
    o->head_bytes = opts->head_bytes;
    o->control = opts->control_floats;
    o->depth =
        tree_depth(&opts->lane_tree, opts->max_piece > 0 ? opts->max_piece : opts->max_lanes);
    if (opts->spare != SPARE_OFF)
        o->depth++; /* copies of lanes of another replica begin in arena 2 */
    o->eval_words = e->eval_words;
    o->has_outer = opts->has_outer;
    rc = engine_memory_open(&e->memory, o, err);
    for (uint32_t i = 0; rc == 0 && i < opts->n_devices; i++)
        e->replicas[i]->arenas = &e->memory.arenas[i];
    return rc;
}

void engine_note(const struct engine *e, bool is_warning, const char *text)
{
    e->opts->on_note(e->opts->arg, is_warning, text);
}

int engine_check_canceled(const struct engine *e, struct err *err)
{
    return cancel_requested(e->opts->cancel) ? err_set(err, ERR_CANCELED, "the generation ended")
                                             : 0;
}

void engine_append(char *text, size_t n, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + used, n - used, fmt, ap);
    va_end(ap);
}

uint32_t lane_merges(const struct engine_replica *r, uint32_t i)
{
    const struct lane_tree *tree = &r->engine->opts->lane_tree;
    uint32_t n_first = r->n_lanes - r->n_second;

    return i < n_first ? tree_merges(tree, i, n_first)
                       : tree_merges(tree, i - n_first, r->n_second);
}

uint32_t lane_base(const struct engine_replica *r, uint32_t i)
{
    return i < r->n_lanes - r->n_second ? 0 : 1;
}
