/* metadata.c - collects the exporter's metadata about the initializers. See metadata.h.
 *
 * Metadata are untrusted text: each pass is linear in their length, look-ups use a keyed hash, and
 * the memory of the tables is subtracted from the budget of the file. */
#include "graph/metadata.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/graph_priv.h"
#include "graph/import_priv.h"

enum { COST_OF_TEXT = 8 /* bytes of tables per byte of metadata */ };

static const char signature_key[] = "pkg.torch.export.ExportedProgram.graph_signature";
static const char kind_key[] = "pkg.torch.export.graph_signature.InputSpec.kind";
static const char folded_key[] = "pkg.onnxscript.optimizer.folded_from";
static const char fx_key[] = "pkg.torch.onnx.fx_node";

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "metadata of the model: out of memory");
}

static const char *find_metadata(Onnx__StringStringEntryProto *const *list, size_t n,
                                 const char *key)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (list[i]->key != NULL && strcmp(list[i]->key, key) == 0)
            return list[i]->value;
    return NULL;
}

const char *graph_fx_text(const Onnx__NodeProto *n)
{
    return find_metadata(n->metadata_props, n->n_metadata_props, fx_key);
}

static int charge(struct graph *g, const char *text, struct err *err)
{
    uint64_t cost = text != NULL ? COST_OF_TEXT * (uint64_t)strlen(text) : 0;

    if (cost > g->file.unpack_budget)
        return err_set(err, ERR_INPUT, "the model has more metadata than the limit for a file of "
                                       "this size");
    g->file.unpack_budget -= cost;
    return 0;
}

static int add_to_map(struct map *m, const char *key, uint64_t value, struct err *err)
{
    return map_put(m, key, value) == MAP_NOMEM ? no_memory(err) : 0;
}

/* ---- the signature ---- */

/* The quoted string after "target="; NULL: the line has none. */
static char *target_of(struct arena *mem, const char *line, size_t n)
{
    const char *at = memmem(line, n, "target=", 7), *end;

    if (at == NULL || at + 8 > line + n || (at[7] != '\'' && at[7] != '"'))
        return NULL;
    end = memchr(at + 8, at[7], (size_t)(line + n - at - 8));
    return end != NULL ? arena_strndup(mem, at + 8, (size_t)(end - at - 8)) : NULL;
}

/* Parses "p_fc_weight: PARAMETER target='fc.weight'". */
static int read_line(struct graph *g, const char *line, size_t n, struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;
    struct graph_metadata_target *t = &e->targets[e->n_targets];
    const char *colon = memchr(line, ':', n), *kind;
    size_t left;
    int rc;

    if (colon == NULL)
        return 0;
    for (kind = colon + 1; kind < line + n && *kind == ' ';)
        kind++;
    left = (size_t)(line + n - kind);
    *t = (struct graph_metadata_target){ .alias_of = METADATA_NONE,
                                   .aliases = METADATA_NONE,
                                   .next_alias = METADATA_NONE };
    t->is_parameter = left > 10 && memcmp(kind, "PARAMETER ", 10) == 0;
    if (!t->is_parameter && !(left > 7 && memcmp(kind, "BUFFER ", 7) == 0)) {
        t->placeholder = arena_strndup(&g->mem, line, (size_t)(colon - line));
        return t->placeholder == NULL ? no_memory(err)
                                      : add_to_map(&e->others, t->placeholder, 0, err);
    }
    t->is_volatile = !t->is_parameter && memmem(kind, left, "persistent=False", 16) != NULL;
    t->placeholder = arena_strndup(&g->mem, line, (size_t)(colon - line));
    t->name = target_of(&g->mem, kind, left);
    if (t->placeholder == NULL)
        return no_memory(err);
    if (t->name == NULL)
        return 0;
    if (strlen(t->placeholder) >= FX_MAX_NAME || strlen(t->name) >= FX_MAX_NAME)
        return err_set(err, ERR_INPUT,
                       "the signature of the module has a name of more than %d bytes",
                       FX_MAX_NAME - 1);
    rc = add_to_map(&e->by_placeholder, t->placeholder, e->n_targets, err);
    if (rc == 0)
        rc = add_to_map(&e->by_name, t->name, e->n_targets, err);
    e->n_targets++;
    return rc;
}

static int read_signature(struct graph *g, const char *text, struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;
    const char *end = strstr(text, "# outputs"), *at;
    size_t lines = 1;
    int rc = charge(g, text, err);

    if (end == NULL)
        end = text + strlen(text);
    for (at = text; at < end; at++)
        lines += *at == '\n';
    if (rc < 0)
        return rc;
    e->targets = arena_array(&g->mem, lines, sizeof(*e->targets));
    if (e->targets == NULL)
        return no_memory(err);
    for (at = text; at < end && rc == 0;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));

        if (stop == NULL)
            stop = end;
        rc = read_line(g, at, (size_t)(stop - at), err);
        at = stop + 1;
    }
    e->has_signature = rc == 0 && e->n_targets > 0;
    return rc;
}

/* ---- initializers ---- */

/* Parses the names in "['fc.weight', 'val_1']". */
static int read_sources(struct graph *g, const char *text, struct graph_metadata_tensor *t,
                        struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;
    char name[FX_MAX_NAME];
    int rc = charge(g, text, err);

    for (const char *at = strchr(text, '\''); at != NULL && rc == 0; at = strchr(at, '\'')) {
        const char *end = strchr(++at, '\'');
        uint64_t target;

        if (end == NULL)
            break;
        if (fx_copy((struct fx_span){ at, (size_t)(end - at) }, name)) {
            rc = add_to_map(&e->sources, name, 0, err);
            if (!map_get(&e->by_name, name, &target)) {
                t->n_others++;
            } else if (e->targets[target].is_parameter) {
                if (t->n_sources++ == 0)
                    t->target = (uint32_t)target;
                e->targets[target].is_folded = true;
            } else {
                t->n_others++;
            }
        } else {
            t->n_others++;
        }
        at = end + 1;
    }
    return rc;
}

static int read_tensor(struct graph *g, const char *name, const char *kind, const char *folded,
                       struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;
    struct graph_metadata_tensor t = { .name = arena_strdup(&g->mem, name), .target = METADATA_NONE };
    uint64_t target;
    int rc = 0;

    if (t.name == NULL)
        return no_memory(err);
    if (map_get(&e->by_name, name, &target)) {
        struct graph_metadata_target *own = &e->targets[target];

        t.target = (uint32_t)target;
        t.kind = !own->is_parameter                               ? METADATA_BUFFER
                 : kind != NULL && strcmp(kind, "PARAMETER") == 0 ? METADATA_PARAMETER
                                                                  : METADATA_CHANGED;
        own->is_held = t.kind == METADATA_PARAMETER;
    } else if (kind != NULL && strcmp(kind, "BUFFER") == 0) {
        t.kind = METADATA_BUFFER;
    } else if (folded != NULL) {
        rc = read_sources(g, folded, &t, err);
        t.kind = t.n_sources > 0 ? METADATA_FOLDED : METADATA_CONSTANT;
        /* PyTorch 2.15 incorrectly folds Bernoulli of a constant: torch.bernoulli(mask) */
        if (t.kind == METADATA_CONSTANT && strncmp(name, "bernoulli", 9) == 0)
            t.refusal = "random numbers that the exporter drew once and stored, so that every step "
                        "would use the same";
    }
    if (rc == 0 && !VEC_PUSH(e->tensors, t))
        rc = no_memory(err);
    return rc < 0 ? rc : add_to_map(&e->by_tensor, name, e->tensors.n - 1, err);
}

static int map_infos(const Onnx__GraphProto *p, struct map *infos, struct err *err)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < p->n_value_info && rc == 0; i++)
        if (p->value_info[i]->name != NULL && p->value_info[i]->n_metadata_props > 0)
            rc = add_to_map(infos, p->value_info[i]->name, i, err);
    return rc;
}

static int read_tensors(struct graph *g, const struct map *infos, struct err *err)
{
    const Onnx__GraphProto *p = g->file.model->graph;
    size_t i;
    int rc = 0;

    for (i = 0; i < p->n_initializer && rc == 0; i++) {
        const Onnx__TensorProto *t = p->initializer[i];
        const char *kind = find_metadata(t->metadata_props, t->n_metadata_props, kind_key);
        const char *folded = find_metadata(t->metadata_props, t->n_metadata_props, folded_key);
        uint64_t k;

        if (t->name == NULL)
            continue; /* import refuses it */
        if (map_get(infos, t->name, &k)) {
            const Onnx__ValueInfoProto *v = p->value_info[k];

            if (kind == NULL)
                kind = find_metadata(v->metadata_props, v->n_metadata_props, kind_key);
            if (folded == NULL)
                folded = find_metadata(v->metadata_props, v->n_metadata_props, folded_key);
        }
        rc = read_tensor(g, t->name, kind, folded, err);
    }
    return rc;
}

/* ---- nodes ---- */

static int name_results(struct graph *g, struct err *err)
{
    const Onnx__GraphProto *p = g->file.model->graph;
    char name[FX_MAX_NAME];
    struct fx fx;
    size_t i;
    int rc = 0;

    for (i = 0; i < p->n_node && rc == 0; i++) {
        const char *text = graph_fx_text(p->node[i]);

        rc = charge(g, text, err);
        fx_parse(text, &fx);
        if (rc == 0 && fx.name.n > 0 && fx_copy(fx.name, name))
            rc = add_to_map(&g->file.metadata.fx_names, name, i, err);
    }
    return rc;
}

/* Returns whether a node or an initializer of the file represents this result of an FX node. */
static bool is_known(const struct graph_metadata *e, const char *name)
{
    uint64_t k;

    return map_get(&e->fx_names, name, &k) || map_get(&e->by_tensor, name, &k) ||
           map_get(&e->sources, name, &k) || map_get(&e->by_placeholder, name, &k) ||
           map_get(&e->others, name, &k);
}

/* Returns whether the node of this result may have read a parameter. A "getitem" selects one of
 * several results of a node, which has a name of its own, and a "clone" copies a result after a
 * permutation; the other results are sizes, the arithmetic of sizes, constants, or comparisons. */
static bool may_read_parameter(struct fx_span name)
{
    static const char *const stems[] = {
        "getitem", "clone", "sym_size_int", "sym_size", "sym_numel", "floordiv", "mod", "arange",
        "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "scalar_tensor",
        "scalar_tensor_default", "eq", "ne", "lt", "le", "gt", "ge",
    };
    size_t i;

    for (i = 0; i < COUNT_OF(stems); i++)
        if (fx_has_stem(name, stems[i]))
            return false;
    return true;
}

static int add_vanished(struct graph *g, const char *name, struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;

    if (e->n_vanished++ == 0)
        e->vanished = arena_strdup(&g->mem, name);
    return e->vanished == NULL ? no_memory(err) : 0;
}

static int read_mentions(struct graph *g, struct fx_span text, struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;
    struct fx_span span;
    char name[FX_MAX_NAME];
    size_t at = 0;
    uint64_t k;

    while (fx_next_name(text, &at, &span)) {
        if (!fx_copy(span, name))
            continue;
        if (map_get(&e->by_placeholder, name, &k)) {
            e->targets[k].is_mentioned = true;
        } else if (e->may_be_optimized && may_read_parameter(span) && !is_known(e, name)) {
            int rc = add_vanished(g, name, err);

            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* The results that the signature lists as outputs: "layer_norm_1: USER_OUTPUT". Without FX nodes in
 * the file, no result is known. */
static int read_outputs(struct graph *g, const char *signature, struct err *err)
{
    struct graph_metadata *e = &g->file.metadata;
    const char *at = strstr(signature, "# outputs");
    char name[FX_MAX_NAME];
    int rc = 0;

    if (e->fx_names.n == 0)
        return 0;
    while (e->may_be_optimized && at != NULL && (at = strchr(at, '\n')) != NULL && rc == 0) {
        struct fx_span span = { ++at, strcspn(at, ":\n") };

        if (strncmp(at + span.n, ": USER_OUTPUT", 13) == 0 && fx_copy(span, name) &&
            may_read_parameter(span) && !is_known(e, name))
            rc = add_vanished(g, name, err);
    }
    return rc;
}

/* Returns whether the optimizer of the exporter may have changed the graph: it folds constants, and
 * leaves no Constant node. */
static bool may_be_optimized(const struct graph *g)
{
    const Onnx__GraphProto *p = g->file.model->graph;
    size_t i;

    for (i = 0; i < p->n_node; i++)
        if (strcmp(import_text(p->node[i]->op_type), "Constant") == 0)
            return false;
    return true;
}

/* Nested graphs are opaque bytes here; names in the bytes are found nevertheless. */
static int read_bodies(struct graph *g, const Onnx__NodeProto *n, struct err *err)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < n->n_attribute && rc == 0; i++)
        if (n->attribute[i]->has_g)
            rc = read_mentions(g,
                               (struct fx_span){ (const char *)n->attribute[i]->g.data,
                                                 n->attribute[i]->g.len },
                               err);
    return rc;
}

int graph_metadata_collect(struct graph *g, struct err *err)
{
    const Onnx__GraphProto *p = g->file.model->graph;
    const char *signature = find_metadata(p->metadata_props, p->n_metadata_props, signature_key);
    struct map infos = { 0 };
    struct fx fx;
    size_t i;
    int rc;

    if (signature == NULL)
        return 0;
    rc = read_signature(g, signature, err);
    if (rc == 0)
        rc = graph_note_mutations(g, signature, err);
    if (rc < 0 || !g->file.metadata.has_signature)
        return rc;
    rc = map_infos(p, &infos, err);
    if (rc == 0)
        rc = read_tensors(g, &infos, err);
    map_fini(&infos);
    if (rc == 0)
        rc = name_results(g, err);
    g->file.metadata.may_be_optimized = may_be_optimized(g);
    if (rc == 0)
        rc = read_outputs(g, signature, err);
    for (i = 0; i < p->n_node && rc == 0; i++) {
        fx_parse(graph_fx_text(p->node[i]), &fx);
        rc = read_mentions(g, fx.all, err);
        if (rc == 0)
            rc = read_bodies(g, p->node[i], err);
    }
    return rc;
}

/* ---- queries ---- */

uint32_t graph_next_unseen(const struct graph_metadata *e, uint32_t from)
{
    uint32_t i;

    for (i = from; i < e->n_targets; i++)
        if (e->targets[i].is_parameter && !e->targets[i].is_mentioned && !e->targets[i].is_held &&
            !e->targets[i].is_folded && e->targets[i].alias_of == METADATA_NONE)
            break;
    return i;
}

void graph_metadata_free(struct graph_metadata *e)
{
    map_fini(&e->by_placeholder);
    map_fini(&e->by_name);
    map_fini(&e->by_tensor);
    map_fini(&e->fx_names);
    map_fini(&e->sources);
    map_fini(&e->others);
    VEC_FINI(e->tensors);
}

const struct graph_metadata_tensor *graph_metadata_of(const struct graph *g, const char *name)
{
    uint64_t k;

    return g->file.metadata.has_signature && map_get(&g->file.metadata.by_tensor, name, &k)
               ? &g->file.metadata.tensors.at[k]
               : NULL;
}

uint32_t graph_metadata_parameter(const struct graph_metadata *e, struct fx_span placeholder)
{
    char name[FX_MAX_NAME];
    uint64_t k;

    return fx_copy(placeholder, name) && map_get(&e->by_placeholder, name, &k) &&
                   e->targets[k].is_parameter
               ? (uint32_t)k
               : METADATA_NONE;
}

bool graph_is_detach(const Onnx__NodeProto *n)
{
    struct fx fx;

    if (n->op_type == NULL || strcmp(n->op_type, "Identity") != 0)
        return false;
    fx_parse(graph_fx_text(n), &fx);
    return fx_is(fx.op, "detach") || fx_is(fx.op, "detach_") || fx_is(fx.op, "detach_copy");
}

bool graph_loses_detach(const struct graph_metadata *e, const Onnx__NodeProto *n)
{
    struct fx_span span;
    char name[FX_MAX_NAME];
    struct fx fx;
    size_t at = 0;

    fx_parse(graph_fx_text(n), &fx);
    while (fx_next_name(fx.all, &at, &span))
        if (fx_has_stem(span, "detach") && fx_copy(span, name) && !is_known(e, name))
            return true;
    return false;
}

/* "linear" for "linear_1". */
static struct fx_span stem_of(struct fx_span name)
{
    size_t n = name.n;

    while (n > 0 && name.at[n - 1] >= '0' && name.at[n - 1] <= '9')
        n--;
    return n > 1 && n < name.n && name.at[n - 1] == '_' ? (struct fx_span){ name.at, n - 1 } : name;
}

static bool equal(struct fx_span a, struct fx_span b)
{
    return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

static bool is_product(const Onnx__NodeProto *n)
{
    return strcmp(import_text(n->op_type), "MatMul") == 0 ||
           strcmp(import_text(n->op_type), "Gemm") == 0;
}

/* A fused node has the text of its last part, which reads the result of the first part: Gemm of an
 * addition, Conv of a normalization. */
static bool is_fused(const Onnx__NodeProto *n, const Onnx__NodeProto *maker, const struct fx *fx,
                     struct fx_span stem)
{
    return (strcmp(import_text(n->op_type), import_text(maker->op_type)) == 0 ||
            (is_product(n) && is_product(maker))) &&
           !equal(fx->op, stem);
}

bool graph_reads_merged(const struct graph_metadata *e, const Onnx__NodeProto *n,
                        const Onnx__NodeProto *maker, struct fx_span *merged)
{
    char name[FX_MAX_NAME];
    struct fx fx, made;
    size_t at = 0;

    fx_parse(graph_fx_text(n), &fx);
    fx_parse(graph_fx_text(maker), &made);
    while (e->may_be_optimized && made.name.n > 0 && fx_next_name(fx.all, &at, merged))
        if (equal(stem_of(*merged), stem_of(made.name)) && fx_copy(*merged, name) &&
            !is_known(e, name) && !is_fused(n, maker, &fx, stem_of(made.name)))
            return true;
    return false;
}
