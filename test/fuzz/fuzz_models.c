/* fuzz_models.c - models that are mutated by their grammar: a step selects one field of one message
 * and removes, duplicates, moves, renames or replaces its content. Most results are therefore still
 * ONNX messages: a node twice, an input less, another type, another opset, data in two fields.
 * Graphs inside nodes and functions are mutated too. The target is that of fuzz_onnx; an accepted
 * model is kept for test/fuzz/check_models.py. */
#define FUZZ_HAS_MUTATOR
#include "fuzz/onnx_target.h"

#include <math.h>

#include "proto/onnx.pb-c.h"

const struct fuzz_seed fuzz_seeds[] = {
#include "fuzz/onnx_seeds.h"
};
const size_t n_fuzz_seeds = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (try_model(data, n))
        fuzz_accept();
    return 0;
}

/* ---- memory of one step, and random numbers ---- */

enum { ARENA_BYTES = 16 << 20, PLACES_MAX = 1 << 15, TEXTS_MAX = 1 << 13, PACKED_MAX = 256, DEPTH_MAX = 16 };

struct place { /* a field of a message */
    ProtobufCMessage *m;
    const ProtobufCFieldDescriptor *f;
};

struct packed { /* a message in a bytes field */
    ProtobufCBinaryData *slot;
    ProtobufCMessage *m;
};

static struct {
    uint64_t random;
    size_t used;
    size_t n_places, n_texts, n_packed;
    struct place places[PLACES_MAX];
    char *texts[TEXTS_MAX]; /* all strings of the model */
    struct packed packed[PACKED_MAX];
    _Alignas(16) uint8_t arena[ARENA_BYTES];
} step;

static uint64_t draw(uint64_t below)
{
    step.random ^= step.random >> 12;
    step.random ^= step.random << 25;
    step.random ^= step.random >> 27;
    return below > 0 ? (step.random * 0x2545f4914f6cdd1du >> 16) % below : 0;
}

/* Allocates from the memory of the step; NULL: the memory is exhausted. */
static void *allocate(void *unused, size_t bytes)
{
    void *p;

    (void)unused;
    bytes = (bytes + 15) / 16 * 16;
    if (bytes > ARENA_BYTES - step.used)
        return NULL;
    p = step.arena + step.used;
    step.used += bytes;
    return p;
}

static void release(void *unused, void *p)
{
    (void)unused;
    (void)p;
}

static ProtobufCAllocator arena = { allocate, release, NULL };

/* ---- the places (fields) of a model ---- */

static void *at(const struct place *p)
{
    return (char *)p->m + p->f->offset;
}

static size_t *count_of(const struct place *p)
{
    return (size_t *)(void *)((char *)p->m + p->f->quantifier_offset);
}

/* Returns the type of the message in a bytes field; NULL: the field contains no message. */
static const ProtobufCMessageDescriptor *message_type_of(const struct place *p)
{
    const struct {
        const ProtobufCMessageDescriptor *of;
        const char *field;
        const ProtobufCMessageDescriptor *inside;
    } known[] = {
        { &onnx__model_proto__descriptor, "functions", &onnx__function_proto__descriptor },
        { &onnx__attribute_proto__descriptor, "g", &onnx__graph_proto__descriptor },
        { &onnx__attribute_proto__descriptor, "graphs", &onnx__graph_proto__descriptor },
        { &onnx__attribute_proto__descriptor, "tensors", &onnx__tensor_proto__descriptor },
    };

    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (p->m->descriptor == known[i].of && strcmp(p->f->name, known[i].field) == 0)
            return known[i].inside;
    return NULL;
}

static void collect(ProtobufCMessage *m, int depth);

static void collect_packed(const struct place *p, ProtobufCBinaryData *slot, int depth)
{
    const ProtobufCMessageDescriptor *inside = message_type_of(p);
    ProtobufCMessage *m;

    if (inside == NULL || slot->len == 0 || step.n_packed == PACKED_MAX)
        return;
    m = protobuf_c_message_unpack(inside, &arena, slot->len, slot->data);
    if (m == NULL)
        return;
    step.packed[step.n_packed++] = (struct packed){ slot, m };
    collect(m, depth + 1);
}

static void collect_one(const struct place *p, void *value, int depth)
{
    if (p->f->type == PROTOBUF_C_TYPE_MESSAGE && *(ProtobufCMessage **)value != NULL)
        collect(*(ProtobufCMessage **)value, depth + 1);
    else if (p->f->type == PROTOBUF_C_TYPE_BYTES)
        collect_packed(p, value, depth);
    else if (p->f->type == PROTOBUF_C_TYPE_STRING && *(char **)value != NULL &&
             step.n_texts < TEXTS_MAX)
        step.texts[step.n_texts++] = *(char **)value;
}

static size_t width_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    default:
        return 4;
    }
}

static bool is_oneof(const ProtobufCFieldDescriptor *f)
{
    return (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

/* Returns true if this field is the one that its oneof contains. */
static bool is_chosen(const struct place *p)
{
    return *(const uint32_t *)(const void *)((char *)p->m + p->f->quantifier_offset) == p->f->id;
}

static void collect(ProtobufCMessage *m, int depth)
{
    for (unsigned i = 0; depth < DEPTH_MAX && i < m->descriptor->n_fields; i++) {
        const struct place p = { m, &m->descriptor->fields[i] };

        if (step.n_places == PLACES_MAX)
            return;
        step.places[step.n_places++] = p;
        if (is_oneof(p.f) && !is_chosen(&p))
            continue;
        if (p.f->label != PROTOBUF_C_LABEL_REPEATED)
            collect_one(&p, at(&p), depth);
        else
            for (size_t k = 0; k < *count_of(&p); k++)
                collect_one(&p, *(char **)at(&p) + k * width_of(p.f->type), depth);
    }
}

/* Selects a place: in half of the cases all kinds of messages and all their fields have the same
 * probability, independent of the number of their occurrences; otherwise all places have the same
 * probability. */
static const struct place *choose_place(void)
{
    static const ProtobufCMessageDescriptor *const kinds[] = {
        &onnx__model_proto__descriptor,  &onnx__operator_set_id_proto__descriptor, &onnx__function_proto__descriptor,
        &onnx__graph_proto__descriptor,  &onnx__node_proto__descriptor,            &onnx__attribute_proto__descriptor,
        &onnx__tensor_proto__descriptor, &onnx__value_info_proto__descriptor,      &onnx__type_proto__descriptor,
        &onnx__type_proto__tensor__descriptor, &onnx__tensor_shape_proto__descriptor,
        &onnx__tensor_shape_proto__dimension__descriptor,
    };
    const ProtobufCMessageDescriptor *kind = kinds[draw(COUNT_OF(kinds))];
    const ProtobufCFieldDescriptor *f = &kind->fields[draw(kind->n_fields)];
    size_t first = draw(step.n_places);

    bool by_kind = draw(2) == 0;

    for (size_t i = 0; by_kind && i < step.n_places; i++)
        if (step.places[(first + i) % step.n_places].f == f)
            return &step.places[(first + i) % step.n_places];
    return &step.places[first];
}

/* Returns another, non-empty place of the same field; NULL: there is none. */
static const struct place *choose_same_field(const struct place *p)
{
    size_t first = draw(step.n_places);

    for (size_t i = 0; i < step.n_places; i++) {
        const struct place *q = &step.places[(first + i) % step.n_places];

        if (q->f == p->f && q->m != p->m &&
            (p->f->label != PROTOBUF_C_LABEL_REPEATED || *count_of(q) > 0))
            return q;
    }
    return NULL;
}

/* ---- values ---- */

static bool is_named(const struct place *p, const char *name)
{
    return strcmp(p->f->name, name) == 0;
}

static int64_t draw_integer(const struct place *p, int64_t old)
{
    static const int64_t edges[] = { 0, 1, 2, 3, 4, 5, 7, 8, 64, -1, -2, 1 << 20, (int64_t)1 << 40, INT64_MAX, INT64_MIN };

    if (is_named(p, "data_type") || is_named(p, "elem_type"))
        return (int64_t)draw(24);
    if (is_named(p, "type"))
        return (int64_t)draw(15);
    if (is_named(p, "version"))
        return (int64_t)draw(30);
    if (is_named(p, "data_location"))
        return (int64_t)draw(3);
    if (draw(3) == 0)
        return (int64_t)((uint64_t)old + draw(3) - 1);
    return edges[draw(COUNT_OF(edges))];
}

static char *draw_text(const struct place *p)
{
    static const char *const words[] = { "", "nobody", "ai.onnx", "com.example", "trainerd", "SAME_UPPER", "location",
                                         "offset", "length", "mlp_external.bin", "4" };
    size_t n;
    const struct op_def *const *rows = op_all(&n);

    if (is_named(p, "op_type") && draw(2) == 0)
        return (char *)(uintptr_t)rows[draw(n)]->name;
    if (draw(4) == 0 || step.n_texts == 0)
        return (char *)(uintptr_t)words[draw(COUNT_OF(words))];
    return step.texts[draw(step.n_texts)];
}

static void draw_bytes(ProtobufCBinaryData *b)
{
    static const char *const words[] = { "SAME_LOWER", "linear", "nearest", "ij,jk->ik", "...->", "reflect", "mean", "tanh" };
    size_t n = draw(4) == 0 ? draw(64) : b->len + draw(9) - (b->len >= 4 ? 4 : b->len);
    uint8_t *data = allocate(NULL, n + 1);

    if (draw(4) == 0) {
        b->data = (uint8_t *)(uintptr_t)words[draw(COUNT_OF(words))];
        b->len = strlen((const char *)b->data);
        return;
    }
    if (data == NULL)
        return;
    memset(data, 0, n + 1);
    if (b->len > 0)
        memcpy(data, b->data, n < b->len ? n : b->len);
    for (size_t i = 0; n > 0 && i < 4; i++)
        data[draw(n)] = (uint8_t)draw(256);
    b->data = data;
    b->len = n;
}

static void draw_value(const struct place *p, void *value)
{
    static const double numbers[] = { 0, -0.0, 1, -1, 0.5, 2, 1e30, -1e30, (double)INFINITY, (double)NAN };
    const struct place *alike;

    switch (p->f->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        *(int64_t *)value = draw_integer(p, *(int64_t *)value);
        break;
    case PROTOBUF_C_TYPE_INT32:
        *(int32_t *)value = (int32_t)draw_integer(p, *(int32_t *)value);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        *(float *)value = (float)numbers[draw(COUNT_OF(numbers))];
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)value = numbers[draw(COUNT_OF(numbers))];
        break;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)value = draw_text(p);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        draw_bytes(value);
        break;
    case PROTOBUF_C_TYPE_MESSAGE: /* a message from another place of the model */
        alike = choose_same_field(p);
        if (alike != NULL && p->f->label != PROTOBUF_C_LABEL_REPEATED)
            *(void **)value = *(void **)at(alike);
        else if (alike != NULL)
            *(void **)value = (*(void ***)at(alike))[draw(*count_of(alike))];
        break;
    default:
        break;
    }
}

/* ---- steps ---- */

/* Returns a new list of n elements that starts with the old elements. NULL: out of memory. */
static char *copy_list(const struct place *p, size_t n)
{
    size_t width = width_of(p->f->type), old = *count_of(p);
    char *list = allocate(NULL, (n + 1) * width);

    if (list == NULL)
        return NULL;
    memset(list, 0, (n + 1) * width);
    if (old > 0)
        memcpy(list, *(char **)at(p), (old < n ? old : n) * width);
    *(char **)at(p) = list;
    return list;
}

static void insert(const struct place *p, bool is_copy)
{
    size_t width = width_of(p->f->type), n = *count_of(p), to = draw(n + 1), from = draw(n);
    char *list = copy_list(p, n + 1);

    if (list == NULL)
        return;
    memmove(list + (to + 1) * width, list + to * width, (n - to) * width);
    if (is_copy && n > 0)
        memcpy(list + to * width, list + (from + (from >= to)) * width, width);
    else
        memset(list + to * width, 0, width);
    *count_of(p) = n + 1;
    if (is_copy && n > 0)
        return;
    draw_value(p, list + to * width);
    if ((p->f->type == PROTOBUF_C_TYPE_MESSAGE || p->f->type == PROTOBUF_C_TYPE_STRING) &&
        *(void **)(void *)(list + to * width) == NULL)
        *count_of(p) = n, memmove(list + to * width, list + (to + 1) * width, (n - to) * width);
}

static void change_list(const struct place *p)
{
    size_t width = width_of(p->f->type), n = *count_of(p), a = draw(n), b = draw(n);
    char *list, spare[sizeof(ProtobufCBinaryData)];

    switch (n > 0 ? draw(6) : 5) {
    case 0: /* removes an element */
        list = copy_list(p, n);
        if (list == NULL)
            return;
        memmove(list + a * width, list + (a + 1) * width, (n - a - 1) * width);
        *count_of(p) = n - 1;
        break;
    case 1: /* changes the order */
        list = copy_list(p, n);
        if (list == NULL)
            return;
        memcpy(spare, list + a * width, width);
        memcpy(list + a * width, list + b * width, width);
        memcpy(list + b * width, spare, width);
        break;
    case 2:
        insert(p, true);
        break;
    case 3:
    case 4: /* changes a value */
        list = copy_list(p, n);
        if (list != NULL)
            draw_value(p, list + a * width);
        break;
    default:
        insert(p, false);
    }
}

static void change_member(const struct place *p)
{
    uint32_t *chosen = (uint32_t *)(void *)((char *)p->m + p->f->quantifier_offset);

    if (*chosen != p->f->id)
        memset(at(p), 0, width_of(p->f->type));
    *chosen = draw(4) == 0 ? 0 : p->f->id;
    if (*chosen != 0)
        draw_value(p, at(p));
}

static void change_field(const struct place *p)
{
    bool is_pointer = p->f->type == PROTOBUF_C_TYPE_STRING || p->f->type == PROTOBUF_C_TYPE_MESSAGE;
    protobuf_c_boolean *has =
        (protobuf_c_boolean *)(void *)((char *)p->m + p->f->quantifier_offset);

    if (is_pointer && draw(4) == 0) {
        *(void **)at(p) = NULL;
    } else if (is_pointer) {
        draw_value(p, at(p));
    } else {
        *has = draw(4) != 0;
        if (*has)
            draw_value(p, at(p));
    }
}

/* Stores the float32 raw_data also as float_data, or moves it there. */
static void list_bytes(Onnx__TensorProto *t)
{
    size_t n = t->raw_data.len / sizeof(float);
    float *list = allocate(NULL, n * sizeof(float) + 1);

    if (list == NULL || !t->has_raw_data || n == 0)
        return;
    memcpy(list, t->raw_data.data, n * sizeof(float));
    t->float_data = list;
    t->n_float_data = n;
    t->has_raw_data = draw(2) == 0;
}

static void change(const struct place *p)
{
    if (p->m->descriptor == &onnx__tensor_proto__descriptor && is_named(p, "float_data") &&
        draw(2) == 0)
        list_bytes((Onnx__TensorProto *)p->m);
    else if (is_oneof(p->f))
        change_member(p);
    else if (p->f->label == PROTOBUF_C_LABEL_REPEATED)
        change_list(p);
    else
        change_field(p);
}

/* Packs the nested messages, innermost first; false: out of memory. */
static bool pack_nested(void)
{
    while (step.n_packed > 0) {
        const struct packed *p = &step.packed[--step.n_packed];
        size_t bytes = protobuf_c_message_get_packed_size(p->m);
        uint8_t *data = bytes <= FUZZ_INPUT_MAX ? allocate(NULL, bytes + 1) : NULL;

        if (data == NULL)
            return false;
        p->slot->len = protobuf_c_message_pack(p->m, data);
        p->slot->data = data;
    }
    return true;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed)
{
    ProtobufCMessage *m;

    step.used = step.n_places = step.n_texts = step.n_packed = 0;
    step.random = ((uint64_t)seed + 1) * 0x9e3779b97f4a7c15u | 1;
    m = protobuf_c_message_unpack(&onnx__model_proto__descriptor, &arena, n, data);
    if (m == NULL)
        return n;
    collect(m, 0);
    change(choose_place());
    if (!pack_nested() || protobuf_c_message_get_packed_size(m) > max)
        return n;
    return protobuf_c_message_pack(m, data);
}
