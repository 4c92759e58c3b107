/* restore_form.c - rewrites the message: parameters in the form that the module defines, and nodes
 * that compute from them the tensors of the file. Added objects are allocated with malloc, as those
 * of the unpacker, and are freed with the message. */
#include "graph/restore_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"

enum { ATTR_INT = 2, ATTR_INTS = 7 };

int restore_no_memory(struct restorer *r)
{
    return err_set(r->err, ERR_NOMEM, "parameters of the module: out of memory");
}

int restore_charge(struct restorer *r, uint64_t bytes)
{
    if (bytes > r->g->file.unpack_budget)
        return err_set(r->err, ERR_INPUT, "the parameters of the module need more memory than the limit for "
                                          "a file of this size");
    r->g->file.unpack_budget -= bytes;
    return 0;
}

int restore_refuse(struct restorer *r, uint32_t tensor, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    r->e->tensors.at[tensor].refusal = arena_strdup(&r->g->mem, text);
    return r->e->tensors.at[tensor].refusal != NULL ? 0 : restore_no_memory(r);
}

int restore_read(struct restorer *r, uint32_t i, struct arena *mem, struct tensor *out)
{
    struct tensor_source src = *r->src;
    char what[160];
    int rc;

    src.mem = mem;
    src.widens = false; /* keeps the type of the file */
    snprintf(what, sizeof(what), "initializer '%.120s'", import_text(r->p->initializer[i]->name));
    rc = graph_read_tensor(&src, r->p->initializer[i], what, out, r->err);
    r->src->budget = src.budget;
    return rc;
}

/* ---- parts of the message ---- */

/* Ensures capacity for one more element in a list of pointers of the message. */
static bool grow(void *list, size_t n)
{
    void **old = *(void ***)list, **more;

    if ((n & (n - 1)) != 0) /* the capacity doubles at 1, 2, 4, ... */
        return true;
    more = realloc(old, (n > 0 ? 2 * n : 1) * sizeof(*more));
    if (more == NULL)
        return false;
    *(void ***)list = more;
    return true;
}

/* The capacity of the unpacker's list is n; rounds it up to a power of two, as grow() requires. */
static bool round_up_capacity(void *list, size_t n)
{
    size_t cap = 1;
    void **more;

    while (cap < n)
        cap *= 2;
    more = realloc(*(void ***)list, cap * sizeof(*more));
    if (more == NULL)
        return false;
    *(void ***)list = more;
    return true;
}

static Onnx__TensorProto *new_tensor(const char *name, const struct shape *shape,
                                     enum tensor_dtype dtype, const void *data, size_t bytes)
{
    Onnx__TensorProto *t = malloc(sizeof(*t));

    if (t == NULL)
        return NULL;
    onnx__tensor_proto__init(t);
    t->name = strdup(name);
    t->dims = malloc((shape->rank + 1) * sizeof(*t->dims));
    t->raw_data.data = malloc(bytes + 1);
    if (t->name == NULL || t->dims == NULL || t->raw_data.data == NULL) {
        onnx__tensor_proto__free_unpacked(t, NULL);
        return NULL;
    }
    memcpy(t->dims, shape->dim, shape->rank * sizeof(*t->dims));
    t->n_dims = shape->rank;
    t->has_data_type = 1;
    t->data_type = (int32_t)dtype;
    t->has_raw_data = 1;
    t->raw_data.len = bytes;
    if (bytes > 0)
        memcpy(t->raw_data.data, data, bytes);
    return t;
}

static int push_tensor(struct restorer *r, Onnx__TensorProto *t)
{
    Onnx__GraphProto *p = r->p;

    if (t == NULL)
        return restore_no_memory(r);
    if (p->n_initializer == r->n_tensors && !round_up_capacity(&p->initializer, p->n_initializer)) {
        onnx__tensor_proto__free_unpacked(t, NULL);
        return restore_no_memory(r);
    }
    if (!grow(&p->initializer, p->n_initializer)) {
        onnx__tensor_proto__free_unpacked(t, NULL);
        return restore_no_memory(r);
    }
    p->initializer[p->n_initializer++] = t;
    return map_put(&r->names, t->name, p->n_initializer) == MAP_NOMEM ? restore_no_memory(r) : 0;
}

static Onnx__StringStringEntryProto *new_entry(const char *key, const char *value)
{
    Onnx__StringStringEntryProto *s = malloc(sizeof(*s));

    if (s == NULL)
        return NULL;
    onnx__string_string_entry_proto__init(s);
    s->key = strdup(key);
    s->value = strdup(value);
    if (s->key == NULL || s->value == NULL) {
        onnx__string_string_entry_proto__free_unpacked(s, NULL);
        return NULL;
    }
    return s;
}

/* Stores the kind of the parameter with the tensor, so that an export of this graph can be imported
 * again. */
static int mark_parameter(struct restorer *r, Onnx__TensorProto *t)
{
    t->metadata_props = malloc(sizeof(*t->metadata_props));
    if (t->metadata_props == NULL)
        return restore_no_memory(r);
    t->metadata_props[0] =
        new_entry("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
    if (t->metadata_props[0] == NULL)
        return restore_no_memory(r);
    t->n_metadata_props = 1;
    return 0;
}

bool restore_can_add(const struct restorer *r, uint32_t target)
{
    uint64_t ignored;

    return !r->e->targets[target].is_held &&
           !map_get(&r->names, r->e->targets[target].name, &ignored);
}

int restore_add_param(struct restorer *r, uint32_t target, const struct shape *shape,
                      enum tensor_dtype dtype, const void *data, uint32_t from)
{
    struct graph_metadata *e = r->e;
    struct tensor like = { .dtype = dtype, .shape = *shape };
    struct graph_metadata_tensor record = { .name = e->targets[target].name,
                                      .kind = METADATA_PARAMETER,
                                      .target = target };
    int rc;

    CHECK(restore_can_add(r, target));
    rc = push_tensor(r, new_tensor(record.name, shape, dtype, data, tensor_bytes(&like)));
    if (rc == 0)
        rc = mark_parameter(r, r->p->initializer[r->p->n_initializer - 1]);
    if (rc < 0)
        return rc;
    if (from != METADATA_NONE)
        record.restored = e->tensors.at[from].name;
    else
        record.reason = "a bias of zeros, which the exporter removed";
    if (!VEC_PUSH(e->tensors, record) ||
        map_put(&e->by_tensor, record.name, e->tensors.n - 1) == MAP_NOMEM)
        return restore_no_memory(r);
    e->targets[target].is_held = true;
    r->made_from[target] = from;
    return 0;
}

int restore_add_ints(struct restorer *r, const char *stem, const int64_t *values, size_t n,
                     const char **name)
{
    struct shape shape = { .rank = 1, .dim = { (int64_t)n } };

    *name = restore_name(r, stem, "ints");
    if (*name == NULL)
        return restore_no_memory(r);
    return push_tensor(r, new_tensor(*name, &shape, TENSOR_I64, values, n * sizeof(*values)));
}

const char *restore_name(struct restorer *r, const char *stem, const char *suffix)
{
    char *name = arena_printf(&r->mem, "%s/%s", stem, suffix);
    uint64_t ignored;

    /* One counter for all stems: restarting at 1 for each would need quadratic time and memory. */
    while (name != NULL && map_get(&r->names, name, &ignored))
        name = arena_printf(&r->mem, "%s/%s_%" PRIu32, stem, suffix, ++r->n_collisions);
    if (name != NULL && map_put(&r->names, name, 0) == MAP_NOMEM)
        return NULL;
    return name;
}

void restore_place(struct restorer *r, uint32_t tensor)
{
    uint32_t k;

    r->at = 0;
    for (k = r->first_use[tensor]; k != METADATA_NONE; k = r->uses.at[k].next)
        r->at = r->uses.at[k].node; /* the list ends with the first use */
    if (r->at > r->first_body)
        r->at = r->first_body;
}

static bool copy_names(char ***list, size_t *n_list, const char *const *names, size_t n)
{
    size_t i;

    *list = calloc(n + 1, sizeof(**list));
    if (*list == NULL)
        return false;
    for (i = 0; i < n; i++) {
        (*list)[i] = strdup(names[i]);
        if ((*list)[i] == NULL)
            return false;
        *n_list = i + 1;
    }
    return true;
}

Onnx__NodeProto *restore_add_node(struct restorer *r, const char *op, const char *const *inputs,
                                  size_t n_in, const char *const *outputs, size_t n_out)
{
    Onnx__NodeProto *n = malloc(sizeof(*n));

    if (n == NULL) {
        (void)restore_no_memory(r);
        return NULL;
    }
    onnx__node_proto__init(n);
    n->op_type = strdup(op);
    n->name = strdup(outputs[0]);
    if (n->op_type == NULL || n->name == NULL ||
        !copy_names(&n->input, &n->n_input, inputs, n_in) ||
        !copy_names(&n->output, &n->n_output, outputs, n_out) ||
        !VEC_PUSH(r->made, (struct restore_node){ n, r->at, r->made.n })) {
        onnx__node_proto__free_unpacked(n, NULL);
        (void)restore_no_memory(r);
        return NULL;
    }
    return n;
}

static Onnx__AttributeProto *new_attr(Onnx__NodeProto *n, const char *name, int32_t type)
{
    Onnx__AttributeProto *a, **list = realloc(n->attribute, (n->n_attribute + 1) * sizeof(*list));

    if (list == NULL)
        return NULL;
    n->attribute = list;
    a = malloc(sizeof(*a));
    if (a == NULL)
        return NULL;
    onnx__attribute_proto__init(a);
    a->name = strdup(name);
    a->has_type = 1;
    a->type = type;
    if (a->name == NULL) {
        free(a);
        return NULL;
    }
    list[n->n_attribute++] = a;
    return a;
}

int restore_add_attr(struct restorer *r, Onnx__NodeProto *n, const char *name, int64_t value)
{
    Onnx__AttributeProto *a = new_attr(n, name, ATTR_INT);

    if (a == NULL)
        return restore_no_memory(r);
    a->has_i = 1;
    a->i = value;
    return 0;
}

/* Sets perm = [1, 0]. */
int restore_add_perm(struct restorer *r, Onnx__NodeProto *n)
{
    Onnx__AttributeProto *a = new_attr(n, "perm", ATTR_INTS);

    if (a == NULL || (a->ints = malloc(2 * sizeof(*a->ints))) == NULL)
        return restore_no_memory(r);
    a->ints[0] = 1;
    a->ints[1] = 0;
    a->n_ints = 2;
    return 0;
}

int restore_set_input(struct restorer *r, Onnx__NodeProto *n, size_t input, const char *name)
{
    char *copy = strdup(name), **list;

    if (copy == NULL)
        return restore_no_memory(r);
    if (input < n->n_input) {
        free(n->input[input]);
        n->input[input] = copy;
        return 0;
    }
    CHECK(input == n->n_input); /* callers append at most one input */
    list = realloc(n->input, (n->n_input + 1) * sizeof(*list));
    if (list == NULL) {
        free(copy);
        return restore_no_memory(r);
    }
    n->input = list;
    list[n->n_input++] = copy;
    return 0;
}

/* ---- restoring one tensor ---- */

static void transpose(const uint8_t *from, size_t rows, size_t columns, size_t width, uint8_t *to)
{
    enum { BLOCK = 16 }; /* keeps both sides in the cache */
    size_t i, k, ib, kb;

    for (ib = 0; ib < rows; ib += BLOCK)
        for (kb = 0; kb < columns; kb += BLOCK)
            for (i = ib; i < rows && i < ib + BLOCK; i++)
                for (k = kb; k < columns && k < kb + BLOCK; k++)
                    memcpy(to + (k * rows + i) * width, from + (i * columns + k) * width, width);
}

static struct shape module_shape(const struct tensor *t, enum restore_form form)
{
    struct shape s = t->shape;

    if (form == RESTORE_TRANSPOSED)
        s = (struct shape){ .rank = 2, .dim = { t->shape.dim[1], t->shape.dim[0] } };
    if (form == RESTORE_FLAT)
        s = (struct shape){ .rank = 1, .dim = { tensor_elements(t) } };
    return s;
}

/* The bytes of the parameter, computed from a tensor that has it in another form. NULL: error. */
static const void *module_bytes(struct restorer *r, struct arena *mem, const struct tensor *t,
                                enum restore_form form)
{
    uint8_t *out;

    if (form != RESTORE_TRANSPOSED)
        return t->data;
    out = arena_alloc(mem, tensor_bytes(t));
    if (out == NULL) {
        (void)restore_no_memory(r);
        return NULL;
    }
    transpose(t->data, (size_t)t->shape.dim[0], (size_t)t->shape.dim[1],
              tensor_dtype_bytes(t->dtype), out);
    return out;
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, a->rank * sizeof(a->dim[0])) == 0;
}

static uint32_t initializer_of(const struct restorer *r, const char *name)
{
    uint64_t i;

    if (!map_get(&r->names, name, &i) || i == 0 || (i <= r->n_tensors && r->is_removed[i - 1]))
        return METADATA_NONE;
    return (uint32_t)(i - 1);
}

/* Sets *equal if the file also contains the parameter with the same shape and the same bits. */
static int check_equal(struct restorer *r, struct arena *mem, uint32_t target,
                       const struct shape *shape, const struct tensor *t, const void *bytes,
                       bool *equal)
{
    struct tensor held;
    uint32_t i = initializer_of(r, r->e->targets[target].name);
    int rc;

    *equal = false;
    if (i == METADATA_NONE)
        return 0;
    rc = restore_read(r, i, mem, &held);
    *equal = rc == 0 && held.dtype == t->dtype && same_shape(&held.shape, shape) &&
             memcmp(held.data, bytes, tensor_bytes(t)) == 0;
    return rc;
}

/* Creates an initializer for the parameter of use `u`, unless one exists. *ok is set to false if
 * that is impossible. */
static int ensure_param(struct restorer *r, uint32_t i, const struct tensor *t,
                        const struct restore_use *u, bool *ok)
{
    struct arena mem = { 0 };
    const void *bytes;
    struct shape shape = module_shape(t, u->form);
    int rc = 0;

    *ok = true;
    if (r->values[u->target].tensor == i && r->values[u->target].form == u->form)
        return 0; /* created for an earlier use */
    r->values[u->target] = (struct restore_value){ .tensor = i, .form = u->form };
    bytes = module_bytes(r, &mem, t, u->form);
    if (bytes == NULL)
        rc = r->err->code;
    if (rc == 0 && r->e->targets[u->target].is_held) {
        rc = check_equal(r, &mem, u->target, &shape, t, bytes, ok);
    } else if (rc == 0 && !restore_can_add(r, u->target)) {
        *ok = false; /* another tensor has the name */
    } else if (rc == 0) {
        rc = restore_charge(r, u->target == r->e->tensors.at[i].target ? 0 /* replaces the tensor */
                                                                       : tensor_bytes(t));
        if (rc == 0)
            rc = restore_add_param(r, u->target, &shape, t->dtype, bytes, i);
    }
    arena_fini(&mem);
    return rc;
}

/* Returns the name of the value that a use reads: the parameter itself, or the output of a new node
 * that converts it. NULL: error. */
static const char *add_conversion(struct restorer *r, const struct tensor *t,
                                  const struct restore_use *u, const char *output)
{
    const char *param = r->e->targets[u->target].name, *shape;
    const char *in[2] = { param };
    Onnx__NodeProto *n;

    if (u->form == RESTORE_SAME)
        return param;
    if (output == NULL)
        output = restore_name(r, param, u->form == RESTORE_FLAT ? "reshaped" : "transposed");
    if (output == NULL) {
        (void)restore_no_memory(r);
        return NULL;
    }
    if (u->form == RESTORE_TRANSPOSED) {
        n = restore_add_node(r, "Transpose", in, 1, &output, 1);
        return n != NULL && restore_add_perm(r, n) == 0 ? output : NULL;
    }
    if (restore_add_ints(r, output, t->shape.dim, t->shape.rank, &shape) < 0)
        return NULL;
    in[1] = shape;
    return restore_add_node(r, "Reshape", in, 2, &output, 1) != NULL ? output : NULL;
}

static bool reads_own(const struct restorer *r, uint32_t i)
{
    uint32_t k;

    for (k = r->first_use[i]; k != METADATA_NONE; k = r->uses.at[k].next)
        if (r->uses.at[k].target == r->e->tensors.at[i].target)
            return true;
    return false;
}

static int set_inputs(struct restorer *r, uint32_t i, const struct tensor *t)
{
    const char *own = r->e->tensors.at[i].name; /* name for the output of the new node that replaces
                                                   the tensor */
    uint32_t own_target = r->e->tensors.at[i].target, k;
    bool is_folded = r->e->tensors.at[i].kind == METADATA_FOLDED, prefers_own = reads_own(r, i);
    int rc = 0;

    for (k = r->first_use[i]; k != METADATA_NONE && rc == 0; k = r->uses.at[k].next) {
        const struct restore_use *u = &r->uses.at[k];
        struct restore_value *v = &r->values[u->target];

        if (!is_folded && r->made_from[u->target] != i)
            continue; /* the tensor's own parameter, or one with an initializer of its own */
        if (v->form != u->form)
            *v = (struct restore_value){ .tensor = i, .form = u->form };
        if (v->name == NULL) {
            bool takes_name = is_folded && own != NULL && (u->target == own_target || !prefers_own);

            v->name = add_conversion(r, t, u, takes_name ? own : NULL);
            if (takes_name && u->form != RESTORE_SAME)
                own = NULL;
        }
        rc = v->name != NULL ? restore_set_input(r, r->p->node[u->node], u->input, v->name)
                             : r->err->code;
    }
    return rc;
}

int restore_tensor(struct restorer *r, uint32_t i)
{
    struct arena mem = { 0 };
    bool ok = true, is_folded = r->e->tensors.at[i].kind == METADATA_FOLDED;
    struct tensor t;
    uint32_t k;
    int rc = restore_read(r, i, &mem, &t);

    restore_place(r, i);
    for (k = r->first_use[i]; k != METADATA_NONE && rc == 0 && ok; k = r->uses.at[k].next)
        if (is_folded || (r->uses.at[k].target != r->e->tensors.at[i].target &&
                          !r->e->targets[r->uses.at[k].target].is_held))
            rc = ensure_param(r, i, &t, &r->uses.at[k], &ok);
    if (rc == 0 && !ok)
        rc = restore_refuse(
            r, i, "the metadata state that '%s' is '%s' in another form, but the values differ",
            r->e->tensors.at[i].name, r->e->targets[r->e->tensors.at[i].target].name);
    else if (rc == 0)
        rc = set_inputs(r, i, &t);
    if (rc == 0 && ok && is_folded)
        r->is_removed[i] = true;
    arena_fini(&mem);
    return rc;
}

/* ---- commit ---- */

static int by_position(const void *pa, const void *pb)
{
    const struct restore_node *a = pa, *b = pb;

    if (a->at != b->at)
        return a->at < b->at ? -1 : 1;
    return a->order < b->order ? -1 : 1;
}

/* Inserts each new node directly before its first reader: the gradient of a parameter is then
 * complete together with that reader's, instead of at the end of backward. */
static int insert_nodes(struct restorer *r)
{
    Onnx__GraphProto *p = r->p;
    size_t n = p->n_node, from = p->n_node, to, k = r->made.n;
    Onnx__NodeProto **list;

    if (r->made.n == 0)
        return 0;
    list = realloc(p->node, (n + r->made.n) * sizeof(*list));
    if (list == NULL)
        return restore_no_memory(r);
    p->node = list;
    qsort(r->made.at, r->made.n, sizeof(*r->made.at), by_position);
    for (to = n + r->made.n; k > 0;)
        if (r->made.at[k - 1].at >= from)
            list[--to] = r->made.at[--k].node;
        else
            list[--to] = list[--from];
    p->n_node = n + r->made.n;
    r->made.n = 0;
    return 0;
}

int restore_commit(struct restorer *r)
{
    Onnx__GraphProto *p = r->p;
    size_t kept = 0, i;

    for (i = 0; i < p->n_initializer; i++)
        if (i < r->n_tensors && r->is_removed[i])
            onnx__tensor_proto__free_unpacked(p->initializer[i], NULL);
        else
            p->initializer[kept++] = p->initializer[i];
    p->n_initializer = kept;
    return insert_nodes(r);
}
