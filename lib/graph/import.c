/* import.c - converts the bytes of a model to values and nodes.
 *
 * The order of the steps: scan the bytes (scan.c), unpack, validate the model as a whole, inline
 * functions (inline.c), list all missing ops in one message, read initializers, inputs, nodes
 * (nodes.c) and outputs; then param.c selects the parameters. */
#include "graph/import_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/file_kind.h"

enum { IR_VERSION_MIN = 3 }; /* the first version with opset_import */

static const uint64_t default_max_bytes = (uint64_t)16 << 30;

/* ---- the model as a whole ---- */

static bool uses_onnx(const Onnx__GraphProto *p)
{
    size_t i;

    for (i = 0; i < p->n_node; i++)
        if (import_is_onnx(p->node[i]->domain))
            return true;
    return p->n_node == 0;
}

/* The opset of ai.onnx that the model imports. */
static int find_opset(const Onnx__ModelProto *m, int64_t *out, struct err *err)
{
    int rc = graph_check_opsets("the model", m->opset_import, m->n_opset_import, err);
    bool found = false;
    size_t i;

    for (i = 0; i < m->n_opset_import && rc == 0; i++)
        if (import_is_onnx(m->opset_import[i]->domain)) {
            *out = m->opset_import[i]->version;
            found = true;
        }
    if (rc < 0 || found)
        return rc;
    if (uses_onnx(m->graph))
        return err_set(err, ERR_INPUT, "the model has no opset_import of ai.onnx; export it again");
    *out = GRAPH_OPSET_MAX; /* all nodes are of other domains; import_check_ops() names them */
    return 0;
}

static int check_opset(int64_t opset, struct err *err)
{
    if (opset >= GRAPH_OPSET_MIN && opset <= GRAPH_OPSET_MAX)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "the model uses opset %" PRId64 " of ai.onnx; expected %d to %d: export it again "
                   "with torch.onnx.export(..., opset_version=20) (its default exporter writes 18 or "
                   "later), tf2onnx --opset 17, or jax2onnx.to_onnx(..., opset=21); or convert the "
                   "file with onnx.version_converter.convert_version(model, 20)",
                   opset, GRAPH_OPSET_MIN, GRAPH_OPSET_MAX);
}

static int check_model(struct importer *im, struct err *err)
{
    const Onnx__ModelProto *m = im->g->file.model;
    int64_t opset = 0;
    int rc;

    if (m->graph == NULL)
        return err_set(err, ERR_INPUT, "the file contains no graph: is it an ONNX model?");
    if (!m->has_ir_version || m->ir_version < IR_VERSION_MIN)
        return err_set(err, ERR_INPUT,
                       "the model has ir_version %" PRId64
                       "; expected %d or later: is it an ONNX model?",
                       m->ir_version, IR_VERSION_MIN);
    rc = find_opset(m, &opset, err);
    if (rc == 0)
        rc = check_opset(opset, err);
    if (rc < 0)
        return rc;
    im->g->opset = (uint32_t)opset;
    im->g->file.producer =
        arena_printf(&im->g->mem, "%s%s%s", import_text(m->producer_name),
                     m->producer_version != NULL ? " " : "", import_text(m->producer_version));
    return im->g->file.producer != NULL ? 0 : import_no_memory(err);
}

/* Called before functions are inlined, because inlining drops the metadata of values. */
static int restore_parameters(struct importer *im, struct err *err)
{
    int rc;

    if (!im->trains)
        return 0;
    rc = graph_metadata_collect(im->g, err);
    if (rc == 0)
        rc = graph_lift_constants(im->g, err);
    if (rc == 0)
        rc = graph_restore(im->g, &im->src, im->weights, err);
    return rc == 0 ? graph_tie_names(im->g, im->ties, im->n_ties, err) : rc;
}

static int inline_functions(struct importer *im, struct err *err)
{
    int rc = graph_inline_functions(im->g, err);

    if (rc == 0 && im->trains)
        rc = graph_restore_dropout(im->g, err);
    im->proto = im->g->file.model->graph;
    return rc;
}

/* ---- values ---- */

static int alloc_tables(struct importer *im, struct err *err)
{
    struct graph *g = im->g;
    const Onnx__GraphProto *p = im->proto;

    g->io.inputs = arena_array(&g->mem, p->n_input, sizeof(*g->io.inputs));
    g->io.input_values = arena_array(&g->mem, p->n_input, sizeof(*g->io.input_values));
    g->io.outputs = arena_array(&g->mem, p->n_output, sizeof(*g->io.outputs));
    g->io.output_values = arena_array(&g->mem, p->n_output, sizeof(*g->io.output_values));
    if (g->io.inputs == NULL || g->io.input_values == NULL || g->io.outputs == NULL ||
        g->io.output_values == NULL)
        return import_no_memory(err);
    return 0;
}

static int read_initializers(struct importer *im, struct err *err)
{
    const struct scope top = { .names = &im->g->by_name };

    return import_initializers(im, im->proto, &top, false, err);
}

/* Reads type and shape of an input or output. A dimension with a name or without a value is -1. */
static int read_io(struct importer *im, const Onnx__ValueInfoProto *p, const char *which,
                   bool is_input, struct graph_io *out, struct err *err)
{
    const Onnx__TypeProto__Tensor *t = p->type != NULL ? p->type->tensor_type : NULL;
    size_t i;

    out->name = import_text(p->name);
    if (t == NULL && !is_input)
        return 0;
    if (t == NULL)
        return err_set(err, ERR_UNSUPPORTED, "graph %s '%s' is not a tensor", which, out->name);
    out->dtype = (enum tensor_dtype)t->elem_type;
    if (tensor_dtype_bytes(out->dtype) == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "graph %s '%s' has ONNX data type %d, which is not "
                       "supported",
                       which, out->name, t->elem_type);
    out->dtype = graph_read_type(&im->src, out->dtype);
    if (t->shape == NULL)
        return 0;
    out->has_shape = true;
    if (t->shape->n_dim > TENSOR_MAX_RANK)
        return err_set(err, ERR_UNSUPPORTED, "graph %s '%s' has %zu dimensions; supported are %d",
                       which, out->name, t->shape->n_dim, TENSOR_MAX_RANK);
    out->shape.rank = (uint32_t)t->shape->n_dim;
    for (i = 0; i < t->shape->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[i];
        bool is_fixed = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;

        if (is_fixed && d->dim_value < -1)
            return err_set(err, ERR_INPUT, "graph %s '%s': dimension %zu is %" PRId64, which,
                           out->name, i, d->dim_value);
        out->shape.dim[i] = is_fixed ? d->dim_value : -1; /* Paddle writes -1 for a dynamic one */
    }
    return 0;
}

static int read_inputs(struct importer *im, struct err *err)
{
    const struct scope top = { .names = &im->g->by_name };
    struct graph *g = im->g;
    size_t i;
    int rc = 0;

    for (i = 0; i < im->proto->n_input && rc == 0; i++) {
        const Onnx__ValueInfoProto *p = im->proto->input[i];
        struct graph_value v = { .kind = VALUE_INPUT,
                                 .index = g->io.n_inputs,
                                 .initializer = GRAPH_NONE,
                                 .identity = GRAPH_NONE };
        uint64_t known;

        /* Old files list initializers as inputs too, as default values; they are never overridden
         * here. */
        if (p->name != NULL && map_get(&g->by_name, p->name, &known) &&
            g->values[known].kind == VALUE_CONST)
            continue;
        rc = read_io(im, p, "input", true, &g->io.inputs[g->io.n_inputs], err);
        if (rc == 0)
            rc = import_add_value(im, &top, p->name, v, &g->io.input_values[g->io.n_inputs], err);
        g->io.n_inputs++;
    }
    return rc;
}

static int read_outputs(struct importer *im, struct err *err)
{
    struct graph *g = im->g;
    size_t i;
    int rc;

    for (i = 0; i < im->proto->n_output; i++) {
        uint64_t id;

        rc = read_io(im, im->proto->output[i], "output", false, &g->io.outputs[i], err);
        if (rc < 0)
            return rc;
        if (!map_get(&g->by_name, g->io.outputs[i].name, &id))
            return err_set(err, ERR_INPUT, "no node computes graph output '%s'",
                           g->io.outputs[i].name);
        g->io.output_values[i] = (uint32_t)id;
        g->io.n_outputs++;
    }
    return 0;
}

static int read_nodes(struct importer *im, struct err *err)
{
    const struct scope top = { .names = &im->g->by_name };

    return import_nodes(im, &top, err);
}

static int repair_nodes(struct importer *im, struct err *err)
{
    return graph_repair(im->g, err);
}

static int refuse_missing(struct importer *im, struct err *err)
{
    return import_check_ops(im, err);
}

/* Training changes the types of the file, so the user must be informed about this default. */
static int note_widened(struct importer *im, struct err *err)
{
    const char *type = tensor_dtype_name(im->src.widened);

    if (im->src.n_widened == 0)
        return 0;
    return graph_note(im->g, err,
                      "the file has %" PRIu32 " tensors and types of %s: parameters are kept and "
                      "updated in float32, inputs of the graph that are %s are fed as float32, the "
                      "job's train.precision decides how activations are computed, and the export "
                      "holds %s again",
                      im->src.n_widened, type, type, type);
}

/* Marks the random nodes whose shape does not depend on an input of the graph: it is an attribute,
 * or the shape of a constant. */
static int mark_fixed_draws(struct graph *g, struct err *err)
{
    struct arena mem = { 0 };
    bool *is_fed = arena_array(&mem, g->n_values, sizeof(*is_fed));
    uint32_t i, k;

    if (is_fed == NULL) {
        arena_fini(&mem);
        return import_no_memory(err);
    }
    for (i = 0; i < g->n_values; i++)
        is_fed[i] = g->values[i].kind == VALUE_INPUT;
    for (i = 0; i < g->n_nodes; i++) {
        struct graph_node *n = &g->nodes[i];
        bool fed = n->n_bodies > 0;

        for (k = 0; k < n->n_in && !fed; k++)
            fed = n->in[k] != GRAPH_NONE && is_fed[n->in[k]];
        for (k = 0; k < n->n_out; k++)
            if (n->out[k] != GRAPH_NONE)
                is_fed[n->out[k]] = fed;
        n->draws_fixed = !fed && n->def->random && strcmp(n->def->name, "Dropout") != 0;
    }
    arena_fini(&mem);
    return 0;
}

/* Unlike with Dropout, a file does not state whether a random node belongs to training alone. */
static int note_draws(struct importer *im, struct err *err)
{
    const struct graph *g = im->g;
    const char *first = NULL, *fixed = NULL;
    uint32_t n = 0, n_fixed = 0, i;
    int rc = mark_fixed_draws(im->g, err);

    for (i = 0; i < g->n_nodes && rc == 0; i++) {
        if (!g->nodes[i].def->random || strcmp(g->nodes[i].def->name, "Dropout") == 0)
            continue;
        if (n++ == 0)
            first = g->nodes[i].name;
        if (g->nodes[i].draws_fixed && n_fixed++ == 0)
            fixed = g->nodes[i].name;
    }
    if (rc == 0 && n_fixed > 0)
        rc = graph_note(im->g, err,
                        "of the nodes that draw random numbers %" PRIu32 " have a fixed shape (first "
                        "'%s'), so the samples of a lane may share the numbers: where the module draws "
                        "for each sample, write the noise with torch.rand_like() or torch.randn_like() of "
                        "a tensor of the batch, or make it an input",
                        n_fixed, fixed);
    if (rc < 0 || n == 0)
        return rc;
    return graph_note(im->g, err,
                      "%" PRIu32 " nodes draw random numbers (first '%s'): from the job's seed, also "
                      "in evaluation; they stay in the export, so for inference export the module "
                      "after model.eval() and load the checkpoint",
                      n, first);
}

/* ---- */

enum { SURVEY_STEPS = 4 };

static int (*const steps[])(struct importer *, struct err *) = {
    check_model, restore_parameters, inline_functions, import_count_ops, /* graph_list_ops() ends here */
    refuse_missing, alloc_tables, read_initializers, read_inputs, read_nodes, repair_nodes,
    read_outputs,
};

static int unpack(struct graph *g, const struct graph_opts *opts, const void *bytes, size_t n,
                  struct err *err)
{
    const struct file_kind *kind;
    int rc;

    g->file.unpack_budget = graph_scan_budget(n);
    rc = graph_scan(&onnx__model_proto__descriptor, bytes, n, &g->file.unpack_budget, err);
    kind = rc == ERR_INPUT ? file_kind_of(bytes, n) : NULL;
    if (kind != NULL)
        return err_set(err, ERR_INPUT, "not an ONNX model: the file is %s; %s", kind->what,
                       kind->remedy != NULL ? kind->remedy
                                            : "export the network to ONNX (trainerctl recipe)");
    if (rc < 0)
        return rc;
    g->file.path = arena_strdup(&g->mem, opts->path != NULL ? opts->path : "");
    if (g->file.path == NULL)
        return import_no_memory(err);
    g->file.unpacked = g->file.model = onnx__model_proto__unpack(NULL, n, bytes);
    if (g->file.model == NULL)
        return err_set(err, ERR_INPUT,
                       "not a readable ONNX model: the fields do not fit the "
                       "schema; the file is damaged or not ONNX");
    return 0;
}

static int import(struct graph *g, const struct graph_opts *opts, size_t n_steps, const void *bytes,
                  size_t n, struct err *err)
{
    struct importer im = { .g = g };
    size_t i;
    int rc = unpack(g, opts, bytes, n, err);

    im.opts = opts;
    im.weights = opts->weights;
    im.ties = opts->ties;
    im.n_ties = opts->n_ties;
    im.src.mem = &g->mem;
    g->file.external.model_path = g->file.path;
    im.src.external = &g->file.external;
    im.src.widens = !opts->all_constant;
    im.src.budget = opts->max_bytes > 0 ? opts->max_bytes : default_max_bytes;
    im.trains = n_steps != SURVEY_STEPS && !opts->all_constant;
    for (i = 0; i < n_steps && rc == 0; i++)
        rc = steps[i](&im, err);
    VEC_FINI(im.bodies);
    if (n_steps == SURVEY_STEPS)
        return rc;
    if (rc == 0)
        rc = graph_find_params(g, opts, err);
    if (rc == 0)
        rc = graph_check_generated(g, opts, err);
    if (rc == 0)
        rc = note_widened(&im, err);
    if (rc == 0)
        rc = note_draws(&im, err);
    if (rc == 0)
        rc = graph_copy_constants(g, err);
    if (rc == 0)
        rc = graph_set_initial(g, err);
    if (rc == 0 && opts->weights != NULL)
        rc = graph_load_weights(g, opts->weights, err);
    if (rc == 0)
        rc = graph_find_module_tensors(g, err);
    if (rc == 0)
        rc = graph_make_digest(g, err);
    return rc < 0 ? rc : graph_external_check(&g->file.external, err);
}

static int import_bytes(const struct graph_opts *opts, size_t n_steps, const void *bytes, size_t n,
                        struct graph **out, struct err *err)
{
    struct graph *g = calloc(1, sizeof(*g));
    int rc;

    if (g == NULL)
        return import_no_memory(err);
    rc = import(g, opts, n_steps, bytes, n, err);
    if (rc < 0) {
        graph_free(g);
        return err_wrap(err, rc, "model '%s'", opts->path != NULL ? opts->path : "(in memory)");
    }
    *out = g;
    return 0;
}

int graph_import_bytes(const struct graph_opts *opts, const void *bytes, size_t n,
                       struct graph **out, struct err *err)
{
    return import_bytes(opts, COUNT_OF(steps), bytes, n, out, err);
}

static int import_file(const struct graph_opts *opts, size_t n_steps, struct graph **out,
                       struct err *err)
{
    uint64_t limit = opts->max_bytes > 0 ? opts->max_bytes : default_max_bytes;
    uint8_t *bytes;
    size_t n;
    int rc = graph_read_file(opts->path, limit, &bytes, &n, err);

    if (rc < 0)
        return err_wrap(err, rc, "model '%s'", opts->path);
    rc = import_bytes(opts, n_steps, bytes, n, out, err);
    free(bytes);
    return rc;
}

int graph_import(const struct graph_opts *opts, struct graph **out, struct err *err)
{
    return import_file(opts, COUNT_OF(steps), out, err);
}

int graph_list_ops(const struct graph_opts *opts, struct graph **out, struct err *err)
{
    return import_file(opts, SURVEY_STEPS, out, err);
}
