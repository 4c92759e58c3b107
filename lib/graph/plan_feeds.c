/* plan_feeds.c - the inputs that the caller writes before every call: graph inputs, targets, sample
 * weights. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"

static const char *source_of(const struct plan_feed *feed)
{
    return feed->source != NULL ? feed->source : feed->name;
}

/* The shape in memory, including the batch dimension. */
static int whole_shape(const struct plan_builder *b, const struct plan_feed *feed,
                       struct shape *out, struct err *err)
{
    if (b->opts->purpose == PLAN_RUN) {
        *out = feed->shape;
        return 0;
    }
    if (feed->shape.rank < TENSOR_MAX_RANK) {
        out->rank = feed->shape.rank + 1;
        out->dim[0] = b->opts->batch;
        memcpy(&out->dim[1], feed->shape.dim, feed->shape.rank * sizeof(out->dim[0]));
        if (shape_elements(out) > 0)
            return 0;
    }
    return err_set(err, ERR_INPUT,
                   "'%s': the feature's shape has no elements, or too many dimensions",
                   source_of(feed));
}

static bool fits_from(const struct shape *want, const struct shape *have, uint32_t from)
{
    uint32_t k;

    if (want->rank != have->rank)
        return false;
    for (k = from; k < want->rank; k++)
        if (want->dim[k] >= 0 && want->dim[k] != have->dim[k])
            return false;
    return true;
}

static bool is_list_of_ints(const struct graph_io *io)
{
    return (io->dtype == TENSOR_I64 || io->dtype == TENSOR_I32) && io->has_shape &&
           io->shape.rank == 1;
}

/* The remedy for an input whose shape does not match and that may belong to an EmbeddingBag with
 * offsets: exporters write that as a Loop over the bags, with two lists of integers as inputs. "":
 * it does not. */
static const char *bag_hint(const struct graph *g, const struct graph_io *io)
{
    uint32_t lists = 0, loops = 0, i;

    for (i = 0; i < g->io.n_inputs; i++)
        lists += is_list_of_ints(&g->io.inputs[i]);
    for (i = 0; i < g->n_nodes; i++)
        loops += strcmp(g->nodes[i].def->name, "Loop") == 0;
    return !is_list_of_ints(io) || lists < 2 || loops == 0
               ? ""
               : "; the indices and offsets of an EmbeddingBag have no batch in common, and the size of a bag depends on "
                 "the data, where a step has fixed shapes: call the module with indices [batch, bag size] and no offsets "
                 "(padding_idx fills short bags), and export it again";
}

static int shape_mismatch(const struct plan_builder *b, const struct plan_feed *feed,
                          const struct graph_io *io, const struct shape *have, struct err *err)
{
    char want[192], is[192];

    shape_print(&io->shape, want, sizeof(want));
    shape_print(have, is, sizeof(is));
    if (b->opts->purpose == PLAN_RUN)
        return err_set(err, ERR_INPUT, "model input '%s' has shape %s (-1: any), but %s holds %s",
                       io->name, want, source_of(feed), is);
    return err_set(
        err, ERR_INPUT,
        "model input '%s' has shape %s (-1: any), but feature '%s' has %s (batch first)%s",
        io->name, want, source_of(feed), is, bag_hint(b->p->g, io));
}

/* A file with a fixed batch can be trained with another batch unless a node requires the fixed one
 * (plan_batch.c); all inputs must then have the same fixed batch. */
static int check_feed(struct plan_builder *b, const struct plan_feed *feed,
                      const struct graph_io *io, const struct shape *have, struct err *err)
{
    if (feed->dtype != io->dtype)
        return err_set(err, ERR_INPUT, "model input '%s' is %s, but %s '%s' is %s", io->name,
                       tensor_dtype_name(io->dtype),
                       b->opts->purpose == PLAN_RUN ? "the array" : "feature", source_of(feed),
                       tensor_dtype_name(feed->dtype));
    if (b->opts->purpose == PLAN_RUN)
        return !io->has_shape || fits_from(&io->shape, have, 0)
                   ? 0
                   : shape_mismatch(b, feed, io, have, err);
    if (!io->has_shape)
        return err_set(
            err, ERR_INPUT,
            "graph input '%s' has no shape; export it with one (dimensions may be dynamic)",
            io->name);
    if (io->shape.rank == 0)
        return err_set(err, ERR_INPUT, "model input '%s' is a scalar: it has no batch dimension",
                       io->name);
    if (!fits_from(&io->shape, have, 1))
        return shape_mismatch(b, feed, io, have, err);
    if (io->shape.dim[0] < 0 || io->shape.dim[0] == have->dim[0])
        return 0;
    if (b->file_batch != 0 && b->file_batch != io->shape.dim[0])
        return err_set(err, ERR_INPUT,
                       "model input '%s' has a batch fixed at %" PRId64 ", '%s' one of %" PRId64
                       "%s",
                       io->name, io->shape.dim[0], b->fixed_input, b->file_batch,
                       bag_hint(b->p->g, io)[0] != '\0' ? bag_hint(b->p->g, io)
                                                        : ": export the model with a dynamic batch");
    b->file_batch = io->shape.dim[0];
    b->fixed_input = io->name;
    return 0;
}

static int find_input(const struct graph *g, const char *name, uint32_t *out, struct err *err)
{
    struct buf list = { 0 };
    uint32_t i;

    for (i = 0; i < g->io.n_inputs; i++)
        if (strcmp(g->io.inputs[i].name, name) == 0) {
            *out = i;
            return 0;
        }
    for (i = 0; i < g->io.n_inputs && i < 8; i++)
        buf_printf(&list, "%s'%.100s'", i > 0 ? ", " : "", g->io.inputs[i].name);
    (void)err_set(err, ERR_INPUT, "the model has no input '%s'; its inputs are: %s", name,
                  list.data != NULL ? list.data : "none");
    buf_fini(&list);
    return ERR_INPUT;
}

/* Values that a shape or a branch depends on are small. */
static int copy_value(struct plan *p, const void *value, struct tensor *t, struct err *err)
{
    size_t bytes = tensor_bytes(t);

    if (value == NULL || tensor_elements(t) > PLAN_MAX_VALUES)
        return 0;
    t->data = arena_alloc(&p->mem, bytes);
    if (t->data == NULL)
        return plan_no_memory(err);
    if (bytes > 0)
        memcpy(t->data, value, bytes);
    return 0;
}

static int add_input(struct plan_builder *b, uint32_t i, const char *name, enum tensor_dtype dtype,
                     const struct shape *shape, const void *value, struct err *err)
{
    struct tensor t = { .dtype = dtype, .shape = *shape };
    char text[192];
    uint32_t id;
    int rc;

    if (plan_is_too_large(&t))
        return err_set(err, ERR_INPUT, "input '%s' of shape %s is too large", name,
                       shape_print(shape, text, sizeof(text)));
    rc = copy_value(b->p, b->opts->purpose == PLAN_RUN ? value : NULL, &t, err);
    if (rc < 0)
        return rc;
    id = plan_add_value(b->p, name, PLAN_FEED, i, &t);
    if (id == GRAPH_NONE)
        return plan_no_memory(err);
    b->p->inputs.values[i] = id;
    b->p->values.at[id].kept = true; /* forward may be run again on the same batch */
    b->p->values.at[id].by_sample = b->opts->purpose != PLAN_RUN;
    return 0;
}

static int add_feed(struct plan_builder *b, uint32_t i, struct err *err)
{
    const struct graph *g = b->p->g;
    const struct plan_feed *feed = &b->opts->feeds[i];
    struct shape shape;
    uint32_t input, value;
    int rc = find_input(g, feed->name, &input, err);

    if (rc < 0)
        return rc;
    value = g->io.input_values[input];
    if (b->map[value] != GRAPH_NONE)
        return err_set(err, ERR_INPUT, "model input '%s' is fed twice", feed->name);
    rc = whole_shape(b, feed, &shape, err);
    if (rc < 0)
        return err_wrap(err, rc, "model input");
    rc = check_feed(b, feed, &g->io.inputs[input], &shape, err);
    if (rc == 0)
        rc = add_input(b, i, g->io.inputs[input].name, feed->dtype, &shape, feed->value, err);
    if (rc == 0)
        b->map[value] = b->p->inputs.values[i];
    return rc;
}

int plan_feeds(struct plan_builder *b, struct err *err)
{
    const struct plan_opts *o = b->opts;
    const struct graph *g = b->p->g;
    struct shape shape = shape_of(1, (int64_t)o->batch);
    uint32_t i;
    int rc = 0;

    for (i = 0; i < o->n_feeds && rc == 0; i++)
        rc = add_feed(b, i, err);
    for (i = 0; i < g->io.n_inputs && rc == 0; i++)
        if (b->needed[g->io.input_values[i]] && b->map[g->io.input_values[i]] == GRAPH_NONE)
            rc = err_set(err, ERR_INPUT, "model input '%s' is not fed: name %s for it",
                         g->io.inputs[i].name, o->purpose == PLAN_RUN ? "an array" : "a feature");
    if (rc == 0 && o->purpose != PLAN_RUN)
        rc = add_input(b, o->n_feeds + o->n_targets, "(sample weights)", TENSOR_F32, &shape, NULL,
                       err);
    for (i = 0; i < o->n_targets && rc == 0; i++) {
        rc = whole_shape(b, &o->targets[i], &shape, err);
        if (rc < 0)
            return err_wrap(err, rc, "labels");
        rc = add_input(b, o->n_feeds + i, "(labels)", o->targets[i].dtype, &shape, NULL, err);
    }
    return rc;
}
