/* inline.c - inlines calls of model-local functions (FunctionProto).
 *
 * Inlining rewrites the message before any other step reads it, so that import, export and digest
 * only handle a flat graph. A call is replaced by copies of the function's nodes: formal inputs and
 * outputs get the names of the call's arguments, all other names get a prefix that is unique to the
 * call, and attributes that refer to an attribute of the function (ref_attr_name) get the value of
 * the call or the default. Names in nested graphs are changed in the same way. Copies are shallow:
 * strings and tensors are shared. */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

struct nodes {
    Onnx__NodeProto **at;
    size_t n, cap;
};

struct inliner {
    struct graph *g;
    Onnx__FunctionProto **functions;
    size_t n_functions;
    uint32_t n_calls;
    size_t n_nodes; /* nodes copied so far; bounds time and memory */
    struct err *err;
};

struct frame { /* one call; NULL: the file's own graph */
    const Onnx__FunctionProto *f;
    const Onnx__NodeProto *call; /* its names are those of the calling graph */
    const char *prefix;
};

static const char *or_empty(const char *s)
{
    return s != NULL ? s : "";
}

/* "" and "ai.onnx" are the same domain. */
static bool same_domain(const char *a, const char *b)
{
    a = strcmp(or_empty(a), "ai.onnx") == 0 ? "" : or_empty(a);
    b = strcmp(or_empty(b), "ai.onnx") == 0 ? "" : or_empty(b);
    return strcmp(a, b) == 0;
}

static void *alloc(struct inliner *in, size_t n, size_t size)
{
    void *p = arena_array(&in->g->mem, n, size);

    if (p == NULL)
        (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
    return p;
}

/* ---- names ---- */

/* Returns NULL if memory runs out. */
static char *renamed(struct inliner *in, const struct frame *frame, char *name)
{
    char *out;
    size_t i;

    if (frame == NULL || name[0] == '\0')
        return name;
    for (i = 0; i < frame->f->n_input; i++)
        if (strcmp(frame->f->input[i], name) == 0)
            return i < frame->call->n_input ? frame->call->input[i] : (char *)(uintptr_t) "";
    for (i = 0; i < frame->f->n_output && i < frame->call->n_output; i++)
        if (strcmp(frame->f->output[i], name) == 0 && frame->call->output[i][0] != '\0')
            return frame->call->output[i];
    out = arena_printf(&in->g->mem, "%s%s", frame->prefix, name);
    if (out == NULL)
        (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
    return out;
}

static char **renamed_list(struct inliner *in, const struct frame *frame, char **names, size_t n)
{
    char **out = alloc(in, n, sizeof(*out));
    size_t i;

    for (i = 0; out != NULL && i < n; i++) {
        out[i] = renamed(in, frame, names[i]);
        if (out[i] == NULL)
            return NULL;
    }
    return out;
}

/* ---- attributes ---- */

static const Onnx__AttributeProto *find_attr(Onnx__AttributeProto *const *list, size_t n,
                                             const char *name)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (strcmp(or_empty(list[i]->name), name) == 0)
            return list[i];
    return NULL;
}

/* Returns whether the function has this attribute, with or without a default. */
static bool declares(const Onnx__FunctionProto *f, const char *name)
{
    size_t i;

    for (i = 0; i < f->n_attribute; i++)
        if (strcmp(f->attribute[i], name) == 0)
            return true;
    return find_attr(f->attribute_proto, f->n_attribute_proto, name) != NULL;
}

static bool expand(struct inliner *in, const struct frame *frame, Onnx__NodeProto *const *list,
                   size_t n, uint32_t depth, struct nodes *out);

/* The value infos of a body with the new names. */
static Onnx__ValueInfoProto **renamed_infos(struct inliner *in, const struct frame *frame,
                                            Onnx__ValueInfoProto **list, size_t n)
{
    Onnx__ValueInfoProto **out = alloc(in, n, sizeof(*out));
    Onnx__ValueInfoProto *copies = alloc(in, n, sizeof(*copies));
    size_t i;

    if (out == NULL || copies == NULL)
        return NULL;
    for (i = 0; i < n; i++) {
        out[i] = &copies[i];
        copies[i] = *list[i];
        copies[i].name = renamed(in, frame, (char *)(uintptr_t)or_empty(list[i]->name));
        if (copies[i].name == NULL)
            return NULL;
    }
    return out;
}

static bool rename_initializers(struct inliner *in, const struct frame *frame,
                                Onnx__GraphProto *body)
{
    Onnx__TensorProto **list = alloc(in, body->n_initializer, sizeof(*list));
    Onnx__TensorProto *copies = alloc(in, body->n_initializer, sizeof(*copies));
    size_t i;

    if (list == NULL || copies == NULL)
        return false;
    for (i = 0; i < body->n_initializer; i++) {
        list[i] = &copies[i];
        copies[i] = *body->initializer[i];
        copies[i].name = renamed(in, frame, (char *)(uintptr_t)or_empty(copies[i].name));
        if (copies[i].name == NULL)
            return false;
    }
    body->initializer = list;
    return true;
}

/* Rewrites the bytes of a graph attribute, with calls inlined and names changed. */
static bool expand_body(struct inliner *in, const struct frame *frame, Onnx__AttributeProto *a,
                        uint32_t depth)
{
    const Onnx__GraphProto *from = (const Onnx__GraphProto *)graph_unpack_part(
        in->g, &onnx__graph_proto__descriptor, &a->g, "a nested graph", in->err);
    struct nodes nodes = { 0 };
    Onnx__GraphProto body;
    size_t bytes;
    bool ok;

    if (from == NULL)
        return false;
    body = *from;
    ok = expand(in, frame, from->node, from->n_node, depth + 1, &nodes);
    body.node = nodes.at;
    body.n_node = nodes.n;
    body.n_value_info = 0; /* contains the old names, and no later step reads it */
    if (ok)
        body.input = renamed_infos(in, frame, from->input, from->n_input);
    if (ok)
        body.output = renamed_infos(in, frame, from->output, from->n_output);
    ok = ok && body.input != NULL && body.output != NULL && rename_initializers(in, frame, &body);
    if (ok) {
        bytes = onnx__graph_proto__get_packed_size(&body);
        if (bytes > in->g->file.unpack_budget) {
            VEC_FINI(nodes);
            (void)err_set(in->err, ERR_INPUT,
                          "functions of the model: inlining needs more memory than the limit "
                          "for a file of this size");
            return false;
        }
        in->g->file.unpack_budget -= bytes;
        a->g.data = alloc(in, bytes, 1);
        a->g.len = bytes;
        ok = a->g.data != NULL;
        if (ok)
            onnx__graph_proto__pack(&body, a->g.data);
    }
    VEC_FINI(nodes);
    return ok;
}

static bool copy_attrs(struct inliner *in, const struct frame *frame, Onnx__NodeProto *node,
                       uint32_t depth)
{
    Onnx__AttributeProto **list = alloc(in, node->n_attribute, sizeof(*list));
    Onnx__AttributeProto *copies = alloc(in, node->n_attribute, sizeof(*copies));
    size_t n = 0, i;

    if (list == NULL || copies == NULL)
        return false;
    for (i = 0; i < node->n_attribute; i++) {
        const Onnx__AttributeProto *from = node->attribute[i];
        const char *ref = or_empty(from->ref_attr_name);

        if (frame != NULL && ref[0] != '\0') {
            if (graph_check_attr(or_empty(node->name), from, in->err) < 0)
                return false;
            if (!declares(frame->f, ref)) {
                (void)err_set(in->err, ERR_INPUT, "function '%s': attribute '%s' refers to '%s', which the function does "
                              "not have", or_empty(frame->f->name), or_empty(from->name), ref);
                return false;
            }
            const Onnx__AttributeProto *to =
                find_attr(frame->call->attribute, frame->call->n_attribute, ref);

            if (to == NULL)
                to = find_attr(frame->f->attribute_proto, frame->f->n_attribute_proto, ref);
            if (to == NULL)
                continue; /* without a value and without a default: absent here too */
            if (from->type != 0 && to->type != 0 && from->type != to->type) {
                (void)err_set(
                    in->err, ERR_INPUT,
                    "function '%s': attribute '%s' of type %d refers to '%s', which has type %d",
                    or_empty(frame->f->name), or_empty(from->name), from->type, ref, to->type);
                return false;
            }
            copies[n] = *to;
            copies[n].name = from->name;
        } else {
            copies[n] = *from;
            if (from->has_g && !expand_body(in, frame, &copies[n], depth))
                return false;
        }
        list[n] = &copies[n];
        n++;
    }
    node->attribute = list;
    node->n_attribute = n;
    return true;
}

/* ---- nodes ---- */

static const Onnx__FunctionProto *find_function(const struct inliner *in, const Onnx__NodeProto *p)
{
    size_t i;

    for (i = 0; i < in->n_functions; i++) {
        const Onnx__FunctionProto *f = in->functions[i];

        if (strcmp(or_empty(f->name), or_empty(p->op_type)) == 0 &&
            strcmp(or_empty(f->overload), or_empty(p->overload)) == 0 &&
            same_domain(f->domain, p->domain))
            return f;
    }
    return NULL;
}

/* Rows are selected by the opset of the model: this op must have the same row in the function's
 * opset. */
static bool check_opset(const struct inliner *in, const struct frame *frame,
                        const Onnx__NodeProto *p)
{
    int64_t opset = in->g->opset;
    size_t i;

    for (i = 0; frame != NULL && i < frame->f->n_opset_import; i++)
        if (same_domain(frame->f->opset_import[i]->domain, ""))
            opset = frame->f->opset_import[i]->version;
    if (opset == in->g->opset || !same_domain(p->domain, "") ||
        (opset >= GRAPH_OPSET_MIN && opset <= GRAPH_OPSET_MAX &&
         op_find(NULL, or_empty(p->op_type), (uint32_t)opset) ==
             op_find(NULL, or_empty(p->op_type), in->g->opset)))
        return true;
    (void)err_set(in->err, ERR_UNSUPPORTED,
                  "function '%s' uses %s of opset %" PRId64 ", the model that of opset %" PRIu32
                  ": export both with one opset",
                  or_empty(frame->f->name), or_empty(p->op_type), opset, in->g->opset);
    return false;
}

static bool append(struct inliner *in, struct nodes *out, Onnx__NodeProto *node)
{
    if (VEC_PUSH(*out, node))
        return true;
    (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
    return false;
}

/* An output of a function may be one of its inputs; the call then becomes an Identity node. */
static bool pass_inputs(struct inliner *in, const Onnx__FunctionProto *f,
                        const Onnx__NodeProto *call, struct nodes *out)
{
    size_t i, k;

    for (i = 0; i < f->n_output && i < call->n_output; i++)
        for (k = 0; k < f->n_input && k < call->n_input; k++) {
            Onnx__NodeProto *node;

            if (strcmp(f->output[i], f->input[k]) != 0 || call->output[i][0] == '\0')
                continue;
            node = alloc(in, 1, sizeof(*node));
            if (node == NULL)
                return false;
            onnx__node_proto__init(node);
            node->op_type = (char *)(uintptr_t) "Identity";
            node->input = &call->input[k];
            node->output = &call->output[i];
            node->n_input = node->n_output = 1;
            if (!append(in, out, node))
                return false;
        }
    return true;
}

enum { ATTRIBUTES_MAX = 256 }; /* limit for a call and for a function: all pairs are compared */

/* Each attribute of a call must occur once and have one value. */
static bool check_call(struct inliner *in, const Onnx__FunctionProto *f,
                       const Onnx__NodeProto *call)
{
    size_t i;

    for (i = 0; i < call->n_attribute; i++) {
        if (graph_check_attr(or_empty(call->name), call->attribute[i], in->err) < 0)
            return false;
        /* references within a function are already resolved */
        if (or_empty(call->attribute[i]->ref_attr_name)[0] != '\0') {
            (void)err_set(
                in->err, ERR_INPUT,
                "'%s' calls function '%s': attribute '%s' refers to a function's attribute outside of a function",
                or_empty(call->name), or_empty(f->name), or_empty(call->attribute[i]->name));
            return false;
        }
        if (call->n_attribute > ATTRIBUTES_MAX || or_empty(call->attribute[i]->name)[0] == '\0' ||
            find_attr(call->attribute, i, or_empty(call->attribute[i]->name)) != NULL) {
            (void)err_set(in->err, ERR_INPUT,
                          "'%s' calls function '%s' with %zu attributes, '%s' more than once or without a name; "
                          "expected each attribute once",
                          or_empty(call->name), or_empty(f->name), call->n_attribute,
                          or_empty(call->attribute[i]->name));
            return false;
        }
    }
    return true;
}

static bool expand_call(struct inliner *in, const Onnx__FunctionProto *f,
                        const Onnx__NodeProto *call, uint32_t depth, struct nodes *out)
{
    struct frame frame = { .f = f, .call = call };

    if (depth >= GRAPH_MAX_DEPTH) {
        (void)err_set(in->err, ERR_UNSUPPORTED,
                      "function '%s': functions call each other more than %d deep",
                      or_empty(f->name), GRAPH_MAX_DEPTH);
        return false;
    }
    if (call->n_input > f->n_input || call->n_output > f->n_output) {
        (void)err_set(
            in->err, ERR_INPUT,
            "'%s' calls function '%s' with %zu inputs and %zu outputs; it has %zu and %zu",
            or_empty(call->name), or_empty(f->name), call->n_input, call->n_output, f->n_input,
            f->n_output);
        return false;
    }
    if (!check_call(in, f, call))
        return false;
    frame.prefix = arena_printf(&in->g->mem, "%s_%" PRIu32 "/",
                                or_empty(call->name)[0] != '\0' ? call->name : or_empty(f->name),
                                in->n_calls++);
    if (frame.prefix == NULL) {
        (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
        return false;
    }
    return expand(in, &frame, f->node, f->n_node, depth + 1, out) && pass_inputs(in, f, call, out);
}

static bool expand_node(struct inliner *in, const struct frame *frame, const Onnx__NodeProto *from,
                        uint32_t depth, struct nodes *out)
{
    const Onnx__FunctionProto *f = find_function(in, from);
    Onnx__NodeProto *node = alloc(in, 1, sizeof(*node));

    if (node == NULL)
        return false;
    if (++in->n_nodes > GRAPH_MAX_NODES * (size_t)GRAPH_MAX_DEPTH) {
        (void)err_set(
            in->err, ERR_UNSUPPORTED,
            "functions of the model: inlining creates too many nodes; the limit of a graph is %d",
            GRAPH_MAX_NODES);
        return false;
    }
    *node = *from;
    if (frame != NULL) {
        node->input = renamed_list(in, frame, from->input, from->n_input);
        node->output = renamed_list(in, frame, from->output, from->n_output);
        node->name =
            arena_printf(&in->g->mem, "%s%s", frame->prefix,
                         or_empty(from->name)[0] != '\0' ? from->name : or_empty(from->op_type));
        if (node->input == NULL || node->output == NULL || node->name == NULL)
            return false;
    }
    if (!copy_attrs(in, frame, node, depth))
        return false;
    if (f != NULL)
        return expand_call(in, f, node, depth, out);
    return check_opset(in, frame, node) && append(in, out, node);
}

static bool expand(struct inliner *in, const struct frame *frame, Onnx__NodeProto *const *list,
                   size_t n, uint32_t depth, struct nodes *out)
{
    size_t i;

    if (depth > 2 * GRAPH_MAX_DEPTH) {
        (void)err_set(in->err, ERR_UNSUPPORTED,
                      "functions and nested graphs: more than %d levels of nesting", depth);
        return false;
    }
    for (i = 0; i < n; i++)
        if (!expand_node(in, frame, list[i], depth, out))
            return false;
    return true;
}

/* Attribute names of a function, with and without a default, must be unique. */
static bool check_formal(struct inliner *in, const Onnx__FunctionProto *f)
{
    size_t n = f->n_attribute + f->n_attribute_proto, i, k;

    for (i = 0; i < n; i++) {
        const char *name = i < f->n_attribute
                               ? f->attribute[i]
                               : or_empty(f->attribute_proto[i - f->n_attribute]->name);
        bool twice =
            n > ATTRIBUTES_MAX || (i >= f->n_attribute &&
                                   find_attr(f->attribute_proto, i - f->n_attribute, name) != NULL);

        for (k = 0; !twice && k < i && k < f->n_attribute; k++)
            twice = strcmp(f->attribute[k], name) == 0;
        if (twice) {
            (void)err_set(
                in->err, ERR_INPUT,
                "function '%s' has %zu attributes, '%s' more than once; expected unique names",
                or_empty(f->name), n, name);
            return false;
        }
    }
    return true;
}

/* Names of inputs and of outputs must be unique; an output may have the name of an input. */
static bool check_names(struct inliner *in, const Onnx__FunctionProto *f, char *const *names,
                        size_t n)
{
    struct map seen = { 0 };
    bool ok = true;
    size_t i;

    for (i = 0; i < n && ok; i++)
        switch (map_put(&seen, or_empty(names[i]), i)) {
        case MAP_NOMEM:
            ok = false;
            (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
            break;
        case MAP_EXISTED:
            ok = false;
            (void)err_set(in->err, ERR_INPUT, "function '%s': two of its inputs or outputs have the name '%s'; "
                          "expected unique names", or_empty(f->name), or_empty(names[i]));
            break;
        case MAP_NEW:
            break;
        }
    map_fini(&seen);
    return ok;
}

/* A call must match one function, and each function must import one opset per domain. */
static bool check_functions(struct inliner *in)
{
    struct map seen = { 0 };
    bool ok = true;
    size_t i;

    for (i = 0; i < in->n_functions && ok; i++) {
        const Onnx__FunctionProto *f = in->functions[i];
        char what[160],
            *key = arena_printf(&in->g->mem, "%s\n%s\n%s", or_empty(f->name), or_empty(f->overload),
                                same_domain(f->domain, "") ? "" : f->domain);

        snprintf(what, sizeof(what), "function '%.120s'", or_empty(f->name));
        if (key == NULL)
            (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
        ok = key != NULL &&
             graph_check_opsets(what, f->opset_import, f->n_opset_import, in->err) == 0 &&
             check_formal(in, f) && check_names(in, f, f->input, f->n_input) &&
             check_names(in, f, f->output, f->n_output);
        switch (ok ? map_put(&seen, key, i) : MAP_NEW) {
        case MAP_NOMEM:
            ok = false;
            (void)err_set(in->err, ERR_NOMEM, "functions of the model: out of memory");
            break;
        case MAP_EXISTED:
            ok = false;
            (void)err_set(in->err, ERR_INPUT,
                          "the model has two functions '%s' of domain '%s'; expected one: delete one of them, or "
                          "export the model again",
                          or_empty(f->name), or_empty(f->domain));
            break;
        case MAP_NEW:
            break;
        }
    }
    map_fini(&seen);
    return ok;
}

static bool unpack_functions(struct inliner *in)
{
    const Onnx__ModelProto *m = in->g->file.model;
    size_t i;

    in->n_functions = m->n_functions;
    in->functions = alloc(in, m->n_functions, sizeof(*in->functions));
    if (in->functions == NULL)
        return false;
    for (i = 0; i < m->n_functions; i++) {
        char what[64];

        snprintf(what, sizeof(what), "function %zu of the model", i);
        in->functions[i] = (Onnx__FunctionProto *)graph_unpack_part(
            in->g, &onnx__function_proto__descriptor, &m->functions[i], what, in->err);
        if (in->functions[i] == NULL)
            return false;
    }
    return check_functions(in);
}

/* Removes value infos that may name removed values. Those of initializers remain, because their
 * metadata describes the module, also in an export of this graph. The list is shared and reordered
 * in place. */
static void keep_infos(Onnx__GraphProto *graph)
{
    struct map names = { 0 };
    size_t kept = 0, i;
    uint64_t ignored;

    for (i = 0; i < graph->n_initializer; i++)
        if (map_put(&names, or_empty(graph->initializer[i]->name), 0) == MAP_NOMEM)
            break; /* out of memory: fewer infos remain */
    for (i = 0; i < graph->n_value_info; i++)
        if (map_get(&names, or_empty(graph->value_info[i]->name), &ignored)) {
            Onnx__ValueInfoProto *info = graph->value_info[i];

            graph->value_info[i] = graph->value_info[kept]; /* the message still owns both */
            graph->value_info[kept++] = info;
        }
    graph->n_value_info = kept;
    map_fini(&names);
}

int graph_inline_functions(struct graph *g, struct err *err)
{
    struct err own = { 0 };
    struct inliner in = { .g = g, .err = err != NULL ? err : &own };
    Onnx__GraphProto *graph;
    Onnx__ModelProto *model;
    struct nodes nodes = { 0 };
    bool ok;

    if (g->file.model->n_functions == 0)
        return 0;
    graph = alloc(&in, 1, sizeof(*graph));
    model = alloc(&in, 1, sizeof(*model));
    ok = graph != NULL && model != NULL && unpack_functions(&in) &&
         expand(&in, NULL, g->file.model->graph->node, g->file.model->graph->n_node, 0, &nodes);
    if (ok) {
        *model = *g->file.model;
        *graph = *g->file.model->graph;
        graph->node = alloc(&in, nodes.n, sizeof(*graph->node));
        ok = graph->node != NULL;
    }
    if (ok) {
        if (nodes.n > 0)
            memcpy(graph->node, nodes.at, nodes.n * sizeof(*graph->node));
        graph->n_node = nodes.n;
        keep_infos(graph);
        model->graph = graph;
        model->n_functions = 0;
        g->file.model = model;
    }
    VEC_FINI(nodes);
    return ok ? 0 : in.err->code;
}
