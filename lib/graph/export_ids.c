/* export_ids.c - see export_ids.h. */
#include "graph/export_ids.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph_priv.h"

enum {
    ML_VERSION = 2, /* LabelEncoder has keys and values of int64 since then */
    CAST_TO_I64 = 7,
    ATTR_INT = 2,
    ATTR_INTS = 7,
    KEY_BYTES = 18, /* most bytes of an id and its row number in the file */
};

static const char ml_domain[] = "ai.onnx.ml";

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "out of memory");
}

int export_ids_check(const struct export_ids *t, struct err *err)
{
    if (t->n <= INT32_MAX / KEY_BYTES)
        return 0;
    return err_set(err, ERR_UNSUPPORTED,
                   "table '%s' has %" PRIu64 " rows, whose ids exceed the 2 GiB of an ONNX file; expected at "
                   "most %d rows: set model.tables.%s.max_rows, or remove export.onnx and join the last "
                   "checkpoint with `trainerctl convert`, which writes ids and rows as safetensors",
                   t->table, t->n, INT32_MAX / KEY_BYTES, t->table);
}

static int import_ml(struct arena *mem, Onnx__ModelProto *m, struct err *err)
{
    Onnx__OperatorSetIdProto **list, *ml;

    for (size_t i = 0; i < m->n_opset_import; i++) {
        const Onnx__OperatorSetIdProto *o = m->opset_import[i];

        if (o->domain == NULL || strcmp(o->domain, ml_domain) != 0)
            continue;
        return o->version >= ML_VERSION ? 0
                                        : err_set(err, ERR_UNSUPPORTED,
                                                  "the model imports version %" PRId64
                                                  " of %s; dynamic tables need version %d",
                                                  o->version, ml_domain, ML_VERSION);
    }
    list = arena_array(mem, m->n_opset_import + 1, sizeof(Onnx__OperatorSetIdProto *));
    ml = arena_alloc(mem, sizeof(*ml));
    if (list == NULL || ml == NULL)
        return no_memory(err);
    onnx__operator_set_id_proto__init(ml);
    ml->domain = (char *)(uintptr_t)ml_domain;
    ml->has_version = 1;
    ml->version = ML_VERSION;
    memcpy(list, m->opset_import, m->n_opset_import * sizeof(Onnx__OperatorSetIdProto *));
    list[m->n_opset_import++] = ml;
    m->opset_import = list;
    return 0;
}

/* Returns a node with one input, one output, and room for attributes. NULL: out of memory. */
static Onnx__NodeProto *new_node(struct arena *mem, const char *op, const char *input,
                                 const char *output, size_t n_attributes)
{
    Onnx__NodeProto *n = arena_alloc(mem, sizeof(*n));

    if (n == NULL)
        return NULL;
    onnx__node_proto__init(n);
    n->op_type = (char *)(uintptr_t)op;
    n->name = (char *)(uintptr_t)output;
    n->input = arena_alloc(mem, sizeof(char *));
    n->output = arena_alloc(mem, sizeof(char *));
    n->attribute = arena_array(mem, n_attributes, sizeof(Onnx__AttributeProto *));
    if (n->input == NULL || n->output == NULL || n->attribute == NULL)
        return NULL;
    n->input[n->n_input++] = (char *)(uintptr_t)input;
    n->output[n->n_output++] = (char *)(uintptr_t)output;
    return n;
}

static Onnx__AttributeProto *add_attribute(struct arena *mem, Onnx__NodeProto *n, const char *name,
                                           int type)
{
    Onnx__AttributeProto *a = arena_alloc(mem, sizeof(*a));

    if (a == NULL)
        return NULL;
    onnx__attribute_proto__init(a);
    a->name = (char *)(uintptr_t)name;
    a->has_type = 1;
    a->type = type;
    n->attribute[n->n_attribute++] = a;
    return a;
}

static bool add_int(struct arena *mem, Onnx__NodeProto *n, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = add_attribute(mem, n, name, ATTR_INT);

    if (a == NULL)
        return false;
    a->has_i = 1;
    a->i = value;
    return true;
}

static bool add_ints(struct arena *mem, Onnx__NodeProto *n, const char *name, const int64_t *values,
                     uint64_t count)
{
    Onnx__AttributeProto *a = add_attribute(mem, n, name, ATTR_INTS);

    if (a == NULL)
        return false;
    a->ints = (int64_t *)(uintptr_t)values; /* never written */
    a->n_ints = count;
    return true;
}

/* A table without rows has a key too, as an encoder needs one; all ids have row 0. */
static Onnx__NodeProto *new_encoder(struct arena *mem, const struct export_ids *t,
                                    const char *input, const char *output)
{
    static const int64_t zero[1];
    uint64_t n = t->n > 0 ? t->n : 1;
    Onnx__NodeProto *node = new_node(mem, "LabelEncoder", input, output, 3);
    int64_t *rows = arena_array(mem, n, sizeof(*rows));

    if (node == NULL || rows == NULL)
        return NULL;
    for (uint64_t i = 0; i < n; i++)
        rows[i] = (int64_t)i;
    node->domain = (char *)(uintptr_t)ml_domain;
    return add_ints(mem, node, "keys_int64s", t->n > 0 ? t->ids : zero, n) &&
                   add_ints(mem, node, "values_int64s", rows, n) &&
                   add_int(mem, node, "default_int64", (int64_t)t->n)
               ? node
               : NULL;
}

/* Inserts a node before node `at`. The list has room. */
static void insert(Onnx__GraphProto *p, size_t at, Onnx__NodeProto *n)
{
    memmove(p->node + at + 1, p->node + at, (p->n_node - at) * sizeof(*p->node));
    p->node[at] = n;
    p->n_node++;
}

/* Gives a Gather row numbers in place of its ids. `which`: its number, for names. */
static int encode(const struct graph *g, const struct export_ids *t,
                  const struct graph_node *gather, uint32_t which, struct arena *mem,
                  Onnx__GraphProto *p, struct err *err)
{
    const Onnx__NodeProto *from = g->file.model->graph->node[gather->proto];
    const char *rows = arena_printf(mem, "%s/rows_of_ids_%" PRIu32, t->table, which);
    const char *wide = arena_printf(mem, "%s/ids_%" PRIu32, t->table, which);
    bool is_wide = g->values[gather->in[1]].tensor.dtype == TENSOR_I64;
    Onnx__NodeProto *copy = arena_alloc(mem, sizeof(*copy)), *encoder = NULL, *cast = NULL;
    size_t at = 0;

    while (at < p->n_node && p->node[at] != from)
        at++;
    if (at == p->n_node) /* a node that is not in the exported model */
        return 0;
    if (rows != NULL && wide != NULL)
        encoder = new_encoder(mem, t, is_wide ? from->input[1] : wide, rows);
    if (rows != NULL && wide != NULL && !is_wide)
        cast = new_node(mem, "Cast", from->input[1], wide, 1);
    if (copy == NULL || encoder == NULL ||
        (!is_wide && (cast == NULL || !add_int(mem, cast, "to", CAST_TO_I64))))
        return no_memory(err);
    *copy = *from;
    copy->input = arena_array(mem, from->n_input, sizeof(char *));
    if (copy->input == NULL)
        return no_memory(err);
    memcpy(copy->input, from->input, from->n_input * sizeof(char *));
    copy->input[1] = (char *)(uintptr_t)rows;
    p->node[at] = copy;
    insert(p, at, encoder);
    if (cast != NULL)
        insert(p, at, cast);
    return 0;
}

int export_ids_encode(const struct graph *g, const struct export_ids *t, struct arena *mem,
                      Onnx__ModelProto *m, Onnx__GraphProto *p, struct err *err)
{
    Onnx__NodeProto **list =
        arena_array(mem, p->n_node + 2 * (size_t)g->n_nodes, sizeof(Onnx__NodeProto *));
    int rc = import_ml(mem, m, err);

    if (rc == 0 && list == NULL)
        rc = no_memory(err);
    if (rc < 0)
        return rc;
    memcpy(list, p->node, p->n_node * sizeof(Onnx__NodeProto *));
    p->node = list;
    for (uint32_t i = 0; rc == 0 && i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];

        if (strcmp(n->def->name, "Gather") == 0 && n->n_in == 2 &&
            strcmp(g->values[n->in[0]].name, t->table) == 0)
            rc = encode(g, t, n, i, mem, p, err);
    }
    return rc;
}
