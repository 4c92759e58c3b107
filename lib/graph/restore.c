/* restore.c - determines which parameter of the module each node reads.
 *
 * The exporter transposes, merges and removes parameters:
 * - the transposition of a weight is folded into an initializer with a generated name;
 * - initializers of equal values and at most 1024 elements are merged into the first one;
 * - a bias of zeros is removed from Gemm and Conv.
 *
 * The FX node of an ONNX node still names the parameter (its placeholder), and the operator of the
 * FX node determines the position and orientation in which it is read. Each reader of an
 * initializer is therefore resolved to a parameter, and the initializer is split accordingly.
 * Weights that are tied in the module cannot be confused with merged ones: PyTorch traces all
 * aliases as one placeholder, so their readers name the same parameter.
 *
 * Only certain cases are rewritten. All others are kept, with a refusal that takes effect if
 * training would change the tensor. */
#include "graph/restore_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

enum { ANY = 255, MERGED_ELEMENTS_MAX = 1024 /* the exporter does not merge larger tensors */ };

/* PyTorch operator, ONNX op and input: position of the parameter in the operator's arguments. */
static const struct role {
    const char *aten, *onnx;
    uint8_t input, arg;
    enum restore_form form; /* form of a folded tensor; for Gemm: with transB = 0 */
} roles[] = {
    { "linear", "MatMul", 1, 1, RESTORE_TRANSPOSED },
    { "linear", "MatMul", 0, 0, RESTORE_SAME },
    { "linear", "Gemm", 0, 0, RESTORE_SAME },
    { "linear", "Gemm", 1, 1, RESTORE_TRANSPOSED },
    { "linear", "Gemm", 2, 2, RESTORE_SAME },
    { "linear", "Add", ANY, 2, RESTORE_SAME },
    { "addmm", "Gemm", 0, 1, RESTORE_SAME },
    { "addmm", "Gemm", 1, 2, RESTORE_SAME },
    { "addmm", "Gemm", 2, 0, RESTORE_SAME },
    { "addmm", "MatMul", 0, 1, RESTORE_SAME },
    { "addmm", "MatMul", 1, 2, RESTORE_SAME },
    { "addmm", "Add", ANY, 0, RESTORE_SAME },
    { "layer_norm", "LayerNormalization", 1, 2, RESTORE_SAME },
    { "layer_norm", "LayerNormalization", 2, 3, RESTORE_SAME },
    { "layer_norm", "Mul", ANY, 2, RESTORE_SAME },
    { "layer_norm", "Add", ANY, 3, RESTORE_SAME },
    { "native_layer_norm", "LayerNormalization", 1, 2, RESTORE_SAME },
    { "native_layer_norm", "LayerNormalization", 2, 3, RESTORE_SAME },
    { "rms_norm", "RMSNormalization", 1, 2, RESTORE_SAME },
    { "rms_norm", "Mul", ANY, 2, RESTORE_SAME },
    { "group_norm", "GroupNormalization", 1, 2, RESTORE_SAME },
    { "group_norm", "GroupNormalization", 2, 3, RESTORE_SAME },
    { "group_norm", "Mul", ANY, 2, RESTORE_FLAT },
    { "group_norm", "Add", ANY, 3, RESTORE_FLAT },
    { "native_group_norm", "Mul", ANY, 1, RESTORE_FLAT },
    { "native_group_norm", "Add", ANY, 2, RESTORE_FLAT },
    { "instance_norm", "InstanceNormalization", 1, 1, RESTORE_SAME },
    { "instance_norm", "InstanceNormalization", 2, 2, RESTORE_SAME },
    { "batch_norm", "BatchNormalization", 1, 1, RESTORE_SAME },
    { "batch_norm", "BatchNormalization", 2, 2, RESTORE_SAME },
    { "_native_batch_norm_legit", "BatchNormalization", 1, 1, RESTORE_SAME },
    { "_native_batch_norm_legit", "BatchNormalization", 2, 2, RESTORE_SAME },
    { "_native_batch_norm_legit_no_training", "BatchNormalization", 1, 1, RESTORE_SAME },
    { "_native_batch_norm_legit_no_training", "BatchNormalization", 2, 2, RESTORE_SAME },
    { "_native_batch_norm_legit_functional", "BatchNormalization", 1, 1, RESTORE_SAME },
    { "_native_batch_norm_legit_functional", "BatchNormalization", 2, 2, RESTORE_SAME },
    { "convolution", "Conv", 1, 1, RESTORE_SAME },
    { "convolution", "Conv", 2, 2, RESTORE_SAME },
    { "convolution", "ConvTranspose", 1, 1, RESTORE_SAME },
    { "convolution", "ConvTranspose", 2, 2, RESTORE_SAME },
    { "conv1d", "Conv", 1, 1, RESTORE_SAME },
    { "conv1d", "Conv", 2, 2, RESTORE_SAME },
    { "conv2d", "Conv", 1, 1, RESTORE_SAME },
    { "conv2d", "Conv", 2, 2, RESTORE_SAME },
    { "conv3d", "Conv", 1, 1, RESTORE_SAME },
    { "conv3d", "Conv", 2, 2, RESTORE_SAME },
    { "prelu", "PRelu", 1, 1, RESTORE_FLAT },
    { "embedding", "Gather", 0, 0, RESTORE_SAME },
};

/* ---- resolving a use ---- */

static bool is_transposed_b(const Onnx__NodeProto *n)
{
    size_t i;

    for (i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->name != NULL && strcmp(n->attribute[i]->name, "transB") == 0)
            return n->attribute[i]->i != 0;
    return false;
}

static const struct role *find_role(const struct fx *fx, const Onnx__NodeProto *n, size_t input)
{
    size_t i;

    for (i = 0; i < COUNT_OF(roles); i++)
        if (fx_is(fx->op, roles[i].aten) && strcmp(import_text(n->op_type), roles[i].onnx) == 0 &&
            (roles[i].input == input || roles[i].input == ANY) && roles[i].arg < fx->n_args)
            return &roles[i];
    return NULL;
}

/* The parameter of an argument such as "%p_fc_weight". */
static uint32_t parameter_of(const struct graph_metadata *e, struct fx_span arg)
{
    if (arg.n < 2 || arg.at[0] != '%')
        return METADATA_NONE;
    return graph_metadata_parameter(e, (struct fx_span){ arg.at + 1, arg.n - 1 });
}

static void find_mentions(struct restorer *r, uint32_t node, const struct fx *fx)
{
    const struct graph_metadata *e = r->e;
    struct restore_mentions m = { .first = METADATA_NONE };
    char name[FX_MAX_NAME];
    struct fx_span span;
    size_t at = 0;
    uint64_t i;

    if (r->mentions_of == node)
        return;
    while (fx_next_name(fx->all, &at, &span)) {
        uint32_t target = graph_metadata_parameter(e, span);

        if (fx_copy(span, name) && map_get(&e->by_tensor, name, &i) && i < r->n_tensors)
            r->tensor_in_text[i] = node + 1;
        if (target == METADATA_NONE)
            continue;
        if (m.n == 0)
            m.first = target;
        if (m.n == 0 || (m.n == 1 && target != m.first))
            m.n++;
        r->target_in_text[target] = node + 1;
        m.has_lost = m.has_lost || !e->targets[target].is_held;
    }
    r->mentions = m;
    r->mentions_of = node;
}

/* Results of these operators are transpositions of a matrix; the exporter names the folded value
 * after the operator. */
static bool is_transposition(const char *name)
{
    const struct fx_span span = { name, strlen(name) };

    return fx_has_stem(span, "t") || fx_has_stem(span, "transpose") ||
           fx_has_stem(span, "permute") || fx_has_stem(span, "numpy_t");
}

static void resolve_own(struct restorer *r, const struct graph_metadata_tensor *t,
                        const struct fx *fx, struct restore_use *u)
{
    const struct restore_mentions *m = &r->mentions;

    find_mentions(r, u->node, fx);
    u->form = RESTORE_SAME;
    if (r->target_in_text[t->target] == u->node + 1 && (m->n == 1 || !m->has_lost))
        u->target = t->target;
    else if (m->n == 1)
        u->target = m->first;
}

static void resolve_folded(struct restorer *r, uint32_t i, const struct fx *fx,
                           struct restore_use *u)
{
    const struct graph_metadata_tensor *t = &r->e->tensors.at[i];

    if (t->n_sources != 1 || t->n_others != 0 || r->p->initializer[i]->n_dims != 2 ||
        !is_transposition(t->name))
        return;
    find_mentions(r, u->node, fx);
    if (r->tensor_in_text[i] == u->node + 1) {
        u->target = t->target;
        u->form = RESTORE_TRANSPOSED;
    }
}

/* Returns whether a tensor of this shape may have the form that the role states. */
static bool fits(const Onnx__TensorProto *t, enum restore_form form)
{
    size_t i, wide = 0;

    if (form == RESTORE_TRANSPOSED)
        return t->n_dims == 2;
    for (i = 0; i < t->n_dims && form == RESTORE_FLAT; i++)
        wide += t->dims[i] != 1;
    return form == RESTORE_FLAT && t->n_dims > 0 && wide <= 1;
}

static void resolve(struct restorer *r, uint32_t i, const struct fx *fx, struct restore_use *u)
{
    const struct graph_metadata_tensor *t = &r->e->tensors.at[i];
    const Onnx__NodeProto *n = r->p->node[u->node];
    const struct role *role = find_role(fx, n, u->input);
    uint32_t target = role != NULL ? parameter_of(r->e, fx->args[role->arg]) : METADATA_NONE;

    u->target = METADATA_NONE;
    if (t->kind == METADATA_PARAMETER && target != METADATA_NONE) {
        u->target = target;
        u->form = RESTORE_SAME;
    } else if (t->kind == METADATA_PARAMETER) {
        resolve_own(r, t, fx, u);
    } else if (target != METADATA_NONE && t->n_sources == 1 &&
               !(role->form == RESTORE_TRANSPOSED && (t->n_others > 0 || is_transposed_b(n))) &&
               fits(r->p->initializer[i], role->form)) {
        u->target = target;
        u->form = role->form;
    } else {
        resolve_folded(r, i, fx, u);
    }
}

/* ---- aliases ---- */

static const char scopes_key[] = "pkg.torch.onnx.name_scopes";

/* The module that contains a node: the last but one of "['', 'm', 'm.wte', 'embedding']". */
static bool module_of(const Onnx__NodeProto *n, char out[FX_MAX_NAME])
{
    const char *text = NULL, *end, *begin;
    size_t i;

    for (i = 0; i < n->n_metadata_props; i++)
        if (n->metadata_props[i]->key != NULL && strcmp(n->metadata_props[i]->key, scopes_key) == 0)
            text = n->metadata_props[i]->value;
    if (text == NULL || (end = strrchr(text, ',')) == NULL || end == text || end[-1] != '\'')
        return false;
    begin = memrchr(text, '\'', (size_t)(end - 1 - text));
    return begin != NULL &&
           fx_copy((struct fx_span){ begin + 1, (size_t)(end - begin - 2) }, out);
}

/* Records `name` as a second name of `target`, if it is a parameter of the signature without other
 * metadata. */
static void note_name(struct graph_metadata *e, const char *name, uint32_t target)
{
    struct graph_metadata_target *alias;
    uint64_t k;

    if (!map_get(&e->by_name, name, &k) || k == target)
        return;
    alias = &e->targets[k];
    if (alias->is_parameter && !alias->is_mentioned && !alias->is_held && !alias->is_folded &&
        alias->alias_of == METADATA_NONE) {
        alias->alias_of = target;
        alias->next_alias = e->targets[target].aliases;
        e->targets[target].aliases = (uint32_t)k;
    }
}

/* If a module reads the parameter of another module under its own name, the two are tied. The
 * signature lists both names; the FX graph and the file contain one. A tied parameter that no
 * module reads under its own name leaves no trace. transformers has two such cases, recognized by
 * their names: the bias that a head shares with its decoder ("predictions.bias" and
 * "predictions.decoder.bias"), and the table that encoder and decoder share ("shared.weight" and
 * "encoder.embed_tokens.weight"). */
static void note_alias(struct restorer *r, uint32_t node, uint32_t target)
{
    static const char head[] = ".decoder", table[] = "encoder.embed_tokens";
    const char *own = r->e->targets[target].name, *leaf = strrchr(own, '.');
    char module[FX_MAX_NAME], name[2 * FX_MAX_NAME];
    size_t n;

    if (!module_of(r->p->node[node], module))
        return;
    leaf = leaf != NULL ? leaf + 1 : own;
    snprintf(name, sizeof(name), "%s%s%s", module, module[0] != '\0' ? "." : "", leaf);
    note_name(r->e, name, target);
    n = strlen(module);
    if (strcmp(leaf, "bias") == 0 && n > strlen(head) &&
        strcmp(module + n - strlen(head), head) == 0) {
        snprintf(name, sizeof(name), "%.*s.bias", (int)(n - strlen(head)), module);
        note_name(r->e, name, target);
    } else if (strcmp(leaf, "weight") == 0 && n >= strlen(table) &&
               strcmp(module + n - strlen(table), table) == 0 &&
               (n == strlen(table) || module[n - strlen(table) - 1] == '.')) {
        snprintf(name, sizeof(name), "%.*sshared.weight", (int)(n - strlen(table)), module);
        note_name(r->e, name, target);
    }
}

/* ---- all uses ---- */

static bool is_recurrent(const Onnx__NodeProto *n)
{
    return strcmp(import_text(n->op_type), "LSTM") == 0 ||
           strcmp(import_text(n->op_type), "GRU") == 0 ||
           strcmp(import_text(n->op_type), "RNN") == 0;
}

static int add_use(struct restorer *r, uint32_t i, uint32_t node, uint32_t input,
                   const struct fx *fx)
{
    struct restore_use u = { .node = node, .input = input, .next = r->first_use[i] };

    resolve(r, i, fx, &u);
    if (u.target != METADATA_NONE)
        note_alias(r, node, u.target);
    if (!VEC_PUSH(r->uses, u))
        return restore_no_memory(r);
    r->first_use[i] = (uint32_t)(r->uses.n - 1);
    return 0;
}

static int find_node_uses(struct restorer *r, uint32_t node)
{
    const Onnx__NodeProto *n = r->p->node[node];
    struct fx fx;
    size_t k;
    int rc = 0;

    fx_parse(graph_fx_text(n), &fx);
    for (k = 0; k < n->n_input && rc == 0; k++) {
        const struct role *role = find_role(&fx, n, k);
        uint32_t target = role != NULL ? parameter_of(r->e, fx.args[role->arg]) : METADATA_NONE;
        uint64_t i;

        if (target != METADATA_NONE) /* also if a preceding node transposes the parameter */
            note_alias(r, node, target);
        if (!map_get(&r->e->by_tensor, n->input[k], &i) || i >= r->n_tensors)
            continue;
        if (r->e->tensors.at[i].kind == METADATA_PARAMETER ||
            r->e->tensors.at[i].kind == METADATA_FOLDED)
            rc = add_use(r, (uint32_t)i, node, (uint32_t)k, &fx);
    }
    return rc;
}

static bool has_body(const Onnx__NodeProto *n)
{
    size_t i;

    for (i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->has_g)
            return true;
    return false;
}

static int find_uses(struct restorer *r)
{
    uint32_t i;
    int rc = 0;

    r->first_body = UINT32_MAX;
    for (i = 0; i < r->p->n_node && rc == 0; i++) {
        rc = find_node_uses(r, i);
        if (r->first_body == UINT32_MAX && has_body(r->p->node[i]))
            r->first_body = i;
    }
    return rc;
}

static int restore_recurrent(struct restorer *r)
{
    uint32_t i, n = (uint32_t)r->p->n_node;
    struct fx fx;
    int rc = 0;

    for (i = 0; i < n && rc == 0; i++) {
        fx_parse(graph_fx_text(r->p->node[i]), &fx);
        if (is_recurrent(r->p->node[i]))
            rc = restore_rnn(r, i, &fx);
    }
    return rc;
}

/* ---- removed biases ---- */

/* Elements of the bias of node n, whose weight is initializer t; 0: unknown. */
static int64_t bias_elements(const Onnx__NodeProto *n, const Onnx__TensorProto *t)
{
    int64_t group = 1;
    size_t i;

    for (i = 0; i < n->n_attribute; i++)
        if (n->attribute[i]->name != NULL && strcmp(n->attribute[i]->name, "group") == 0)
            group = n->attribute[i]->i;
    if (t->n_dims < 2 || group < 1)
        return 0;
    if (strcmp(n->op_type, "Gemm") == 0)
        return t->n_dims == 2 ? t->dims[is_transposed_b(n) ? 0 : 1] : 0;
    if (strcmp(n->op_type, "Conv") == 0)
        return t->dims[0];
    return t->dims[1] > INT32_MAX || group > INT32_MAX ? 0 : t->dims[1] * group;
}

/* The exporter's rule that removes a bias requires that all of its values are zero, so the
 * parameter is known although the file does not contain it. */
static int restore_bias(struct restorer *r, Onnx__NodeProto *n)
{
    struct tensor weight;
    struct arena mem = { 0 };
    const struct role *role;
    struct fx fx;
    uint32_t target;
    uint64_t t;
    int64_t elements;
    float *zeros;
    int rc;

    fx_parse(graph_fx_text(n), &fx);
    role = find_role(&fx, n, 2);
    if (role == NULL || role->input != 2 || n->n_input < 2 ||
        (n->n_input > 2 && n->input[2][0] != '\0'))
        return 0;
    target = parameter_of(r->e, fx.args[role->arg]);
    if (target == METADATA_NONE || r->e->targets[target].is_held ||
        r->e->targets[target].is_folded || !restore_can_add(r, target) ||
        !map_get(&r->e->by_tensor, n->input[1], &t) || t >= r->n_tensors ||
        memmem(fx.all.at, fx.all.n, "beta", 4) != NULL)
        return 0;
    elements = bias_elements(n, r->p->initializer[t]);
    rc = restore_read(r, (uint32_t)t, &mem, &weight);
    arena_fini(&mem);
    if (rc < 0)
        return rc;
    if (elements <= 0 || elements > tensor_elements(&weight) ||
        (weight.dtype != TENSOR_F32 && weight.dtype != TENSOR_F16 && weight.dtype != TENSOR_BF16))
        return 0;
    rc = restore_charge(r, (uint64_t)elements * 2 * sizeof(float));
    zeros = rc == 0 ? arena_array(&mem, (size_t)elements, sizeof(*zeros)) : NULL;
    if (rc == 0 && zeros == NULL)
        rc = restore_no_memory(r);
    if (rc == 0)
        rc = restore_add_param(r, target,
                               &(struct shape){ .rank = 1, .dim = { elements } }, weight.dtype, zeros,
                               METADATA_NONE);
    arena_fini(&mem);
    return rc < 0 ? rc : restore_set_input(r, n, 2, r->e->targets[target].name);
}

static int restore_biases(struct restorer *r)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < r->p->n_node && rc == 0; i++) {
        const char *op = import_text(r->p->node[i]->op_type);

        if (strcmp(op, "Gemm") == 0 || strcmp(op, "Conv") == 0 || strcmp(op, "ConvTranspose") == 0)
            rc = restore_bias(r, r->p->node[i]);
    }
    return rc;
}

/* ---- remaining tensors ---- */

static int64_t elements_of(const Onnx__TensorProto *t)
{
    int64_t n = 1;
    size_t i;

    for (i = 0; i < t->n_dims; i++)
        n = t->dims[i] <= 0 || n > INT32_MAX / t->dims[i] ? INT32_MAX : n * t->dims[i];
    return n;
}

struct use_counts { /* statistics about the uses of a tensor */
    uint32_t n, unknown, others; /* all uses; of an unknown parameter; of a parameter other than the
                                    tensor's own */
};

static struct use_counts count_uses(const struct restorer *r, uint32_t i)
{
    struct use_counts c = { 0 };
    uint32_t u;

    for (u = r->first_use[i]; u != METADATA_NONE; u = r->uses.at[u].next) {
        c.n++;
        c.unknown += r->uses.at[u].target == METADATA_NONE;
        c.others += r->uses.at[u].target != METADATA_NONE &&
                    r->uses.at[u].target != r->e->tensors.at[i].target;
    }
    return c;
}

static int refuse_fold(struct restorer *r, uint32_t i)
{
    const struct graph_metadata_tensor *t = &r->e->tensors.at[i];
    const char *first = r->e->targets[t->target].name;

    if (t->n_sources > 1)
        return restore_refuse(r, i,
                              "the exporter computed '%s' from %" PRIu32
                              " parameters of the module (one is '%s'), whose values the file does not contain",
                              t->name, t->n_sources, first);
    return restore_refuse(r, i,
                          "the exporter computed '%s' from the parameter '%s' of the module (a function, a "
                          "part or another shape of it), and the file does not contain the parameter itself",
                          t->name, first);
}

static bool has_unseen(struct restorer *r)
{
    r->unseen = graph_next_unseen(r->e, r->unseen);
    return r->unseen < r->e->n_targets;
}

/* Finds the forms of parameter `w` that have the values of `t`, as bits of enum restore_form. */
static int match_forms(struct restorer *r, const struct graph_weight *w, const struct tensor *t,
                       uint32_t *forms)
{
    static const uint32_t exchanged[] = { 1, 0 };
    const struct shape *shape = &t->shape;
    struct shape flat = { .rank = 1, .dim = { tensor_elements(t) } };
    struct arena mem = { 0 };
    float *values;
    uint32_t wide = 0, d;
    int rc = restore_charge(r, (uint64_t)flat.dim[0] * sizeof(*values));

    *forms = 0;
    values = rc == 0 ? arena_array(&mem, (size_t)flat.dim[0], sizeof(*values)) : NULL;
    if (rc == 0 && values == NULL)
        rc = restore_no_memory(r);
    if (rc == 0) {
        graph_read_floats(t, NULL, values);
        for (d = 0; d < shape->rank; d++)
            wide += shape->dim[d] != 1;
        if (graph_weight_equals(w, values, shape, NULL))
            *forms |= 1u << RESTORE_SAME;
        if (shape->rank == 2 && graph_weight_equals(w, values, shape, exchanged))
            *forms |= 1u << RESTORE_TRANSPOSED;
        if (shape->rank > 1 && wide <= 1 && graph_weight_equals(w, values, &flat, NULL))
            *forms |= 1u << RESTORE_FLAT;
    }
    arena_fini(&mem);
    return rc;
}

/* Handles a fold whose form the metadata do not state: if the weights file contains the parameter,
 * its values determine the form. *is_resolved: every use is known afterwards. */
static int resolve_by_values(struct restorer *r, uint32_t i, bool *is_resolved)
{
    const struct graph_metadata_tensor *e = &r->e->tensors.at[i];
    const char *name = r->e->targets[e->target].name;
    struct graph_weight found = { .mapping = NULL };
    struct arena mem = { 0 };
    struct tensor t;
    uint32_t forms, u;
    int rc;

    *is_resolved = false;
    if (r->weights == NULL || e->n_sources != 1 || !graph_weights_find(r->weights, name, &found))
        return 0;
    rc = restore_read(r, i, &mem, &t);
    if (rc == 0 && (t.dtype == TENSOR_F32 || t.dtype == TENSOR_F16 || t.dtype == TENSOR_BF16))
        rc = match_forms(r, &found, &t, &forms);
    else
        forms = 0;
    arena_fini(&mem);
    if (rc < 0)
        return rc;
    if (forms == 0)
        return restore_refuse(r, i,
                              "the exporter computed '%s' from the parameter '%s' of the module, and '%s' in "
                              "%s, as it is or transposed, has other values",
                              e->name, name, name, r->weights->path);
    if ((forms & (forms - 1)) != 0) /* a symmetric matrix: both forms match */
        return 0;
    for (u = r->first_use[i]; u != METADATA_NONE; u = r->uses.at[u].next)
        if (r->uses.at[u].target != METADATA_NONE &&
            (r->uses.at[u].target != e->target || forms != 1u << r->uses.at[u].form))
            return 0;
    for (u = r->first_use[i]; u != METADATA_NONE; u = r->uses.at[u].next) {
        r->uses.at[u].target = e->target;
        r->uses.at[u].form = forms == 1u << RESTORE_SAME         ? RESTORE_SAME
                             : forms == 1u << RESTORE_TRANSPOSED ? RESTORE_TRANSPOSED
                                                                 : RESTORE_FLAT;
    }
    *is_resolved = true;
    return 0;
}

static int restore_fold(struct restorer *r, uint32_t i, const struct use_counts *c)
{
    bool is_resolved;
    int rc;

    if (c->n > 0 && c->unknown == 0)
        return restore_tensor(r, i);
    rc = c->n > 0 ? resolve_by_values(r, i, &is_resolved) : 0;
    if (rc == 0 && c->n > 0 && is_resolved)
        return restore_tensor(r, i);
    return rc < 0 || r->e->tensors.at[i].refusal != NULL ? rc : refuse_fold(r, i);
}

static int restore_one(struct restorer *r, uint32_t i)
{
    const struct graph_metadata_tensor *t = &r->e->tensors.at[i];
    struct use_counts c = count_uses(r, i);

    if (r->is_removed[i] || t->kind == METADATA_BUFFER || t->kind == METADATA_CONSTANT)
        return 0;
    if (t->kind == METADATA_CHANGED)
        return restore_refuse(r, i,
                              "the exporter changed the values of the parameter '%s' (as it does when it "
                              "folds a BatchNormalization into a convolution)",
                              t->name);
    if (t->kind == METADATA_FOLDED)
        return restore_fold(r, i, &c);
    if (c.others == 0 && (c.unknown == 0 || c.n == 1))
        return 0;
    if (c.unknown > 0 && (c.others > 0 || (has_unseen(r) && elements_of(r->p->initializer[i]) <=
                                                                    MERGED_ELEMENTS_MAX)))
        return restore_refuse(r, i,
                              "the exporter may have merged parameters of equal values into '%s', and the "
                              "metadata do not state which parameter each of its %" PRIu32 " readers reads",
                              t->name, c.n);
    return c.others > 0 ? restore_tensor(r, i) : 0;
}

static int map_names(struct restorer *r)
{
    const Onnx__GraphProto *p = r->p;
    size_t i, k;
    bool ok = true;

    for (i = 0; i < p->n_initializer && ok; i++)
        ok = map_put(&r->names, import_text(p->initializer[i]->name), i + 1) != MAP_NOMEM;
    for (i = 0; i < p->n_input && ok; i++) /* may list initializers too */
        ok = map_put(&r->names, import_text(p->input[i]->name), 0) != MAP_NOMEM;
    for (i = 0; i < p->n_node && ok; i++)
        for (k = 0; k < p->node[i]->n_output && ok; k++)
            ok = map_put(&r->names, p->node[i]->output[k], 0) != MAP_NOMEM;
    return ok ? 0 : restore_no_memory(r);
}

static int run(struct restorer *r)
{
    uint32_t i;
    int rc;

    r->n_tensors = (uint32_t)r->p->n_initializer;
    r->first_use = arena_array(&r->mem, r->n_tensors, sizeof(*r->first_use));
    r->is_removed = arena_array(&r->mem, r->n_tensors, sizeof(*r->is_removed));
    r->made_from = arena_array(&r->mem, r->e->n_targets, sizeof(*r->made_from));
    r->values = arena_array(&r->mem, r->e->n_targets, sizeof(*r->values));
    r->target_in_text = arena_array(&r->mem, r->e->n_targets, sizeof(*r->target_in_text));
    r->tensor_in_text = arena_array(&r->mem, r->n_tensors, sizeof(*r->tensor_in_text));
    r->mentions_of = METADATA_NONE;
    if (r->first_use == NULL || r->is_removed == NULL || r->made_from == NULL ||
        r->values == NULL || r->target_in_text == NULL || r->tensor_in_text == NULL)
        return restore_no_memory(r);
    for (i = 0; i < r->e->n_targets; i++)
        r->values[i].tensor = METADATA_NONE;
    memset(r->first_use, 0xFF, r->n_tensors * sizeof(*r->first_use));
    memset(r->made_from, 0xFF, r->e->n_targets * sizeof(*r->made_from));
    rc = map_names(r);
    if (rc == 0)
        rc = find_uses(r);
    if (rc == 0)
        rc = restore_biases(r);
    if (rc == 0)
        rc = restore_recurrent(r);
    for (i = 0; i < r->n_tensors && rc == 0; i++)
        rc = restore_one(r, i);
    return rc == 0 ? restore_commit(r) : rc;
}

int graph_restore(struct graph *g, struct tensor_source *src, const struct graph_weights *weights,
                  struct err *err)
{
    struct err own = { 0 };
    struct restorer r = { .g = g,
                          .e = &g->file.metadata,
                          .p = g->file.model->graph,
                          .src = src,
                          .weights = weights,
                          .err = err != NULL ? err : &own };
    size_t i;
    int rc;

    CHECK(g->file.model == g->file.unpacked);
    if (!g->file.metadata.has_signature || g->file.metadata.tensors.n != r.p->n_initializer)
        return 0; /* no metadata, or an initializer without a name, which import refuses */
    rc = run(&r);
    for (i = 0; i < r.made.n; i++) /* not empty only after an error */
        onnx__node_proto__free_unpacked(r.made.at[i].node, NULL);
    VEC_FINI(r.made);
    VEC_FINI(r.uses);
    map_fini(&r.names);
    arena_fini(&r.mem);
    return rc;
}
