/* Initial values that are not in the model: weights files, matched by name, and external data,
 * which remains in its file until it is copied. */
#include "graph/kit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fs.h"
#include "base/mapping.h"
#include "graph/graph_priv.h"
#include "harness/in_memory.h"

/* ---- a weights file in memory ---- */

struct entry {
    const char *name;
    enum tensor_dtype dtype;
    struct shape shape;
    const void *data;
};

struct file {
    struct entry entries[8];
    const char *names[8];
    struct graph_weights weights;
};

static bool find(const void *arg, const char *name, struct graph_weight *out)
{
    const struct file *f = arg;
    uint32_t i;

    for (i = 0; i < f->weights.n_names; i++)
        if (strcmp(f->entries[i].name, name) == 0) {
            *out = (struct graph_weight){ .tensor = { .dtype = f->entries[i].dtype,
                                                      .shape = f->entries[i].shape,
                                                      .data = (void *)(uintptr_t)f->entries[i].data } };
            return true;
        }
    return false;
}

static void add(struct file *f, const char *name, enum tensor_dtype dtype, struct shape shape,
                const void *data)
{
    uint32_t n = f->weights.n_names++;

    f->entries[n] = (struct entry){ name, dtype, shape, data };
    f->names[n] = name;
    f->weights.path = "w.safetensors";
    f->weights.find = find;
    f->weights.arg = f;
    f->weights.names = f->names;
}

/* x [batch, 4] -> fc.weight [4, 3], fc.bias [3] -> logits; 0.5 is a constant of the formula. */
static struct model *two_layers(void)
{
    struct model *m = model_new(17);
    const float half = 0.5f;

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "fc.weight", shape_of(2, (int64_t)4, (int64_t)3), 1);
    model_weights(m, "fc.bias", shape_of(1, (int64_t)3), 2);
    model_floats(m, "gain.scale", shape_of(1, (int64_t)1), &half);
    model_node(m, "MatMul", "x fc.weight", "h");
    model_node(m, "Add", "h fc.bias", "b");
    model_node(m, "Mul", "b gain.scale", "logits");
    model_output(m, "logits");
    return m;
}

static int import_with(const struct file *f, const char *const *frozen, uint32_t n_frozen,
                       struct graph **g, struct err *err)
{
    const struct graph_opts opts = { .path = "test.onnx",
                                     .frozen = frozen,
                                     .n_frozen = n_frozen,
                                     .weights = &f->weights };
    struct model *m = two_layers();
    const uint8_t *bytes;
    size_t n;
    int rc;

    bytes = model_bytes(m, &n);
    *err = (struct err){ 0 };
    rc = graph_import_bytes(&opts, bytes, n, g, err);
    model_free(m);
    return rc;
}

static const float weight[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
static const float bias[3] = { -1, 0.25f, 65504 };
static const uint16_t bias_f16[3] = { 0xbc00, 0x3400, 0x7bff };
static const uint16_t bias_bf16[3] = { 0xbf80, 0x3e80, 0x4780 }; /* the last: 65536 */
static const double bias_f64[3] = { -1, 0.25, 65504 };
static const char *const scale_only[] = { "gain.scale" };

#define SHAPE_WEIGHT shape_of(2, (int64_t)4, (int64_t)3)
#define SHAPE_BIAS shape_of(1, (int64_t)3)

static const float *values_of(const struct graph *g, const float *arena, const char *name)
{
    uint32_t n, i;
    const struct graph_param *p = graph_params(g, &n);

    for (i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return arena + p[i].offset;
    fail_msg("no parameter '%s'", name);
    return NULL;
}

static bool has_note(const struct graph *g, const char *part)
{
    uint32_t n, i;
    const char *const *notes = graph_notes(g, &n);

    for (i = 0; i < n; i++)
        if (strstr(notes[i], part) != NULL)
            return true;
    return false;
}

static void weights_of_any_float_type_become_float32(void **state)
{
    static const struct {
        enum tensor_dtype dtype;
        const void *data;
        float last;
    } rows[] = {
        { TENSOR_F32, bias, 65504 },
        { TENSOR_F16, bias_f16, 65504 },
        { TENSOR_BF16, bias_bf16, 65536 },
        { TENSOR_F64, bias_f64, 65504 },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char odd[32]; /* a file guarantees no alignment */
        struct file f = { .names = { NULL } };
        struct graph_weights_facts facts;
        struct graph *g;
        float *arena;
        struct err err;

        memcpy(odd + 1, rows[i].data, 3 * tensor_dtype_bytes(rows[i].dtype));
        add(&f, "fc.weight", TENSOR_F32, SHAPE_WEIGHT, weight);
        add(&f, "fc.bias", rows[i].dtype, SHAPE_BIAS, odd + 1);
        if (import_with(&f, scale_only, 1, &g, &err) == 0)
            fail_msg("the frozen parameter 'gain.scale' is absent");
        f.weights.fresh = scale_only;
        f.weights.n_fresh = 1;
        if (import_with(&f, scale_only, 1, &g, &err) < 0)
            fail_msg("%s", err.text);
        arena = calloc(graph_arena_floats(g), sizeof(*arena));
        assert_int_equal(graph_fill_initial(g, arena, NULL), 0);
        assert_memory_equal(values_of(g, arena, "fc.weight"), weight, sizeof(weight));
        assert_memory_equal(values_of(g, arena, "fc.bias"), bias, 8);
        assert_true(values_of(g, arena, "fc.bias")[2] == rows[i].last);
        facts = graph_weights_facts(g);
        assert_int_equal(facts.loaded, 2);
        assert_int_equal(facts.fresh, 1);
        assert_int_equal(facts.surplus, 0);
        graph_release_initial(g);
        assert_int_equal(graph_fill_initial(g, arena, NULL), ERR_INPUT);
        graph_free(g);
        free(arena);
    }
}

static bool every_table(const void *arg, const char *name, uint64_t rows, uint64_t width)
{
    (void)arg, (void)name, (void)rows, (void)width;
    return true;
}

static void remote_rows_come_from_the_file_in_any_float_type(void **state)
{
    static const struct {
        enum tensor_dtype dtype;
        const void *data;
        float last;
    } tables[] = {
        { TENSOR_F32, bias, 65504 },
        { TENSOR_F16, bias_f16, 65504 },
        { TENSOR_BF16, bias_bf16, 65536 },
        { TENSOR_F64, bias_f64, 65504 },
    };
    struct model *m = model_new(17);
    const uint8_t *bytes;
    size_t n_bytes, k;

    (void)state;
    model_input(m, "i", TENSOR_I64, shape_of(2, (int64_t)-1, (int64_t)2));
    model_weights(m, "emb.weight", shape_of(2, (int64_t)3, (int64_t)1), 1);
    model_node(m, "Gather", "emb.weight i", "logits");
    model_output(m, "logits");
    bytes = model_bytes(m, &n_bytes);
    for (k = 0; k < COUNT_OF(tables); k++) {
        struct file f = { .weights = { .n_names = 0 } };
        const struct graph_opts opts = { .path = "test.onnx",
                                         .weights = &f.weights,
                                         .is_remote = every_table };
        struct graph *g;
        struct err err = { 0 };
        float rows[2];
        uint32_t n;

        add(&f, "emb.weight", tables[k].dtype, shape_of(2, (int64_t)3, (int64_t)1), tables[k].data);
        assert_int_equal(graph_import_bytes(&opts, bytes, n_bytes, &g, &err), 0);
        (void)graph_params(g, &n);
        assert_int_equal(n, 0);
        assert_false(has_note(g, "no trained parameters"));
        assert_int_equal(graph_weights_facts(g).loaded, 1);
        assert_int_equal(graph_fill_remote(g, 0, 1, 2, rows, &err), 0);
        assert_true(rows[0] == 0.25f && rows[1] == tables[k].last);
        graph_free(g);
    }
    model_free(m);
}

static void frozen_parameters_have_the_values_of_the_file(void **state)
{
    static const char *const frozen[] = { "*" };
    static const float two = 2;
    struct file f = { .names = { NULL } };
    char path[128], digest[65];
    struct model *m = two_layers();
    struct graph *g, *again, *plain;
    const uint8_t *bytes;
    struct err err;
    uint32_t n, i;
    size_t size;

    (void)state;
    add(&f, "fc.weight", TENSOR_F32, SHAPE_WEIGHT, weight);
    add(&f, "fc.bias", TENSOR_F16, SHAPE_BIAS, bias_f16);
    add(&f, "gain.scale", TENSOR_F32, shape_of(1, (int64_t)1), &two);
    if (import_with(&f, frozen, 1, &g, &err) < 0)
        fail_msg("%s", err.text);
    (void)graph_params(g, &n);
    assert_int_equal(n, 0);
    snprintf(digest, sizeof(digest), "%s", graph_digest(g));
    /* The values compute something else than those of the model, so the digest differs. */
    bytes = model_bytes(m, &size);
    assert_int_equal(graph_import_bytes(&(struct graph_opts){ .frozen = frozen, .n_frozen = 1 },
                                        bytes, size, &plain, NULL), 0);
    assert_string_not_equal(graph_digest(plain), digest);
    graph_free(plain);
    model_free(m);
    /* Export writes them. */
    snprintf(path, sizeof(path), "%s/test_weights-%d.onnx", in_memory(), (int)getpid());
    assert_int_equal(graph_export(g, (const float[1]){ 0 }, path, NULL), 0);
    graph_free(g);
    assert_int_equal(graph_import(&(struct graph_opts){ .path = path }, &again, NULL), 0);
    for (i = 0; i < again->n_params; i++)
        if (strcmp(again->params[i].name, "fc.weight") == 0)
            assert_memory_equal(again->params[i].initial, weight, sizeof(weight));
        else if (strcmp(again->params[i].name, "fc.bias") == 0)
            assert_memory_equal(again->params[i].initial, bias, sizeof(bias));
    graph_free(again);
    assert_int_equal(unlink(path), 0);
}

static void missing_and_surplus_names_are_reported(void **state)
{
    struct file f = { .names = { NULL } };
    struct graph *g;
    struct err err;

    (void)state;
    add(&f, "fc.wieght", TENSOR_F32, SHAPE_WEIGHT, weight);
    assert_int_equal(import_with(&f, NULL, 0, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "weights 'w.safetensors': 3 parameters of the model are not in "
                                     "the file: 'fc.weight', 'fc.bias', 'gain.scale'"));
    assert_non_null(strstr(err.text, "the nearest name there is 'fc.wieght'"));
    assert_non_null(strstr(err.text, "\"weights_names\": {\"fc.weight\": \"fc.wieght\"}"));
    assert_non_null(strstr(err.text, "\"weights_fresh\": [\"fc.weight\"]"));

    f = (struct file){ .names = { NULL } };
    add(&f, "fc.weight", TENSOR_F32, SHAPE_WEIGHT, weight);
    add(&f, "fc.bias", TENSOR_F32, SHAPE_BIAS, bias);
    add(&f, "gain.scale", TENSOR_F32, shape_of(1, (int64_t)1), weight);
    add(&f, "fc.num_batches_tracked", TENSOR_I64, shape_of(0), weight);
    if (import_with(&f, NULL, 0, &g, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(graph_weights_facts(g).surplus, 1);
    assert_true(has_note(g, "3 tensors loaded, 0 keep the values of the model, 1 of the file are "
                            "not in the model: 'fc.num_batches_tracked'"));
    graph_free(g);
}

static void other_prefixes_are_reported_and_mapped_by_the_job(void **state)
{
    static const struct graph_rename add_prefix[] = { { "*", "model.*" },
                                                      { "fc.bias", "tied.bias" },
                                                      { "fc.*", "model.fc.*" } };
    static const struct graph_rename drop_prefix[] = { { "fc.*", "*" } };
    static const char *const fresh[] = { "gain.sc?le" };
    struct file f = { .names = { NULL } };
    struct graph *g;
    struct err err;

    (void)state;
    add(&f, "model.fc.weight", TENSOR_F32, SHAPE_WEIGHT, weight);
    add(&f, "tied.bias", TENSOR_F32, SHAPE_BIAS, bias);
    assert_int_equal(import_with(&f, NULL, 0, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "\"weights_names\": {\"*\": \"model.*\"}"));
    f.weights.renames = add_prefix;
    f.weights.n_renames = 3;
    f.weights.fresh = fresh;
    f.weights.n_fresh = 1;
    if (import_with(&f, NULL, 0, &g, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(graph_weights_facts(g).loaded, 2);
    graph_free(g);

    f = (struct file){ .names = { NULL } };
    add(&f, "weight", TENSOR_F32, SHAPE_WEIGHT, weight);
    add(&f, "bias", TENSOR_F32, SHAPE_BIAS, bias);
    f.weights.fresh = fresh;
    f.weights.n_fresh = 1;
    assert_int_equal(import_with(&f, NULL, 0, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "\"weights_names\": {\"fc.*\": \"*\"}"));
    f.weights.renames = drop_prefix;
    f.weights.n_renames = 1;
    if (import_with(&f, NULL, 0, &g, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(graph_weights_facts(g).loaded, 2);
    graph_free(g);
}

static void other_shapes_and_types_are_refused_with_both_sides(void **state)
{
    struct file f = { .names = { NULL } };
    struct graph *g;
    struct err err;

    (void)state;
    add(&f, "fc.weight", TENSOR_F32, shape_of(2, (int64_t)3, (int64_t)4), weight);
    assert_int_equal(import_with(&f, NULL, 0, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "'fc.weight' is [4, 3] in the model, but [3, 4] in the file"));
    f.entries[0].shape = SHAPE_WEIGHT;
    f.entries[0].dtype = TENSOR_I32;
    assert_int_equal(import_with(&f, NULL, 0, &g, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "'fc.weight' is float32 in the model, but int32 in the file"));
}

static void weight_is_compared_in_any_order_of_dimensions(void **state)
{
    static const float transposed[12] = { 1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12 };
    static const uint32_t swap[2] = { 1, 0 }, same[2] = { 0, 1 };
    struct graph_weight w = { .tensor = { TENSOR_F32, TENSOR_PLAIN, SHAPE_WEIGHT,
                                          (void *)(uintptr_t)weight } };
    struct graph_weight half = { .tensor = { TENSOR_F16, TENSOR_PLAIN, SHAPE_BIAS,
                                             (void *)(uintptr_t)bias_f16 } };
    const struct shape flipped = shape_of(2, (int64_t)3, (int64_t)4), file = SHAPE_WEIGHT,
                       three = SHAPE_BIAS;
    float other[12];

    (void)state;
    assert_true(graph_weight_equals(&w, weight, &file, NULL));
    assert_true(graph_weight_equals(&w, weight, &file, same));
    assert_true(graph_weight_equals(&w, transposed, &flipped, swap));
    assert_false(graph_weight_equals(&w, transposed, &flipped, NULL)); /* the shapes differ */
    assert_false(graph_weight_equals(&w, weight, &flipped, swap));
    assert_false(graph_weight_equals(&w, weight, &three, NULL));
    memcpy(other, weight, sizeof(other));
    other[11] = -12;
    assert_false(graph_weight_equals(&w, other, &file, NULL));
    assert_true(graph_weight_equals(&half, bias, &three, NULL));
}

/* ---- external data ---- */

enum { ROWS = 4096, COLUMNS = 4096 }; /* 64 MiB */

struct external_model {
    char folder[64], model[128], data[128];
};

/* x [batch, ROWS] -> w [ROWS, COLUMNS] -> * c [COLUMNS] -> logits, w and c in model.data, w first.
 * As bfloat16: the upper halves of the same numbers. */
static struct external_model external_new(enum tensor_dtype dtype)
{
    static Onnx__StringStringEntryProto entries[4];
    static Onnx__StringStringEntryProto *lists[2][2] = { { &entries[0], &entries[1] },
                                                         { &entries[2], &entries[3] } };
    static const char *const offsets[2][2] = { { "0", "67108864" }, { "0", "33554432" } };
    const bool is_half = dtype == TENSOR_BF16;
    struct model *m = model_new(17);
    struct external_model o;
    const uint8_t *bytes;
    float row[COLUMNS];
    size_t n, i;
    FILE *data;

    snprintf(o.folder, sizeof(o.folder), "%s/test_weights-XXXXXX", in_memory());
    assert_non_null(mkdtemp(o.folder));
    snprintf(o.model, sizeof(o.model), "%s/model.onnx", o.folder);
    snprintf(o.data, sizeof(o.data), "%s/model.data", o.folder);
    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)ROWS));
    model_weights(m, "w", shape_of(2, (int64_t)1, (int64_t)1), 1);
    model_weights(m, "c", shape_of(1, (int64_t)1), 1);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Mul", "h c", "logits");
    model_output(m, "logits");
    for (i = 0; i < 2; i++) {
        Onnx__TensorProto *t = model_proto(m)->graph->initializer[i];

        t->dims[0] = i == 0 ? ROWS : COLUMNS;
        if (i == 0)
            t->dims[1] = COLUMNS;
        t->data_type = (int32_t)dtype;
        t->has_raw_data = 0;
        t->has_data_location = 1;
        t->data_location = 1;
        t->n_external_data = 2;
        t->external_data = lists[i];
        onnx__string_string_entry_proto__init(lists[i][0]);
        onnx__string_string_entry_proto__init(lists[i][1]);
        lists[i][0]->key = (char *)(uintptr_t) "location";
        lists[i][0]->value = (char *)(uintptr_t) "model.data";
        lists[i][1]->key = (char *)(uintptr_t) "offset";
        lists[i][1]->value = (char *)(uintptr_t)offsets[is_half][i];
    }
    bytes = model_bytes(m, &n);
    assert_int_equal(fs_replace(o.model, bytes, n, NULL), 0);
    model_free(m);
    data = fopen(o.data, "wb");
    assert_non_null(data);
    for (i = 0; i <= ROWS; i++) { /* the last one is c */
        size_t k;

        for (k = 0; k < COLUMNS; k++) {
            row[k] = (float)i + (float)k / COLUMNS;
            if (is_half)
                memcpy((char *)row + 2 * k, (char *)&row[k] + 2, 2);
        }
        assert_int_equal(fwrite(row, sizeof(row) >> is_half, 1, data), 1);
    }
    assert_int_equal(fclose(data), 0);
    return o;
}

static void external_free(const struct external_model *o)
{
    assert_int_equal(fs_remove_tree(o->folder, NULL), 0);
}

/* A field of /proc/self/status, in bytes. */
static size_t memory(const char *field)
{
    char line[256];
    size_t kib = 0, n = strlen(field);
    FILE *f = fopen("/proc/self/status", "r");

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, field, n) == 0 && line[n] == ':')
            kib = strtoull(line + n + 1, NULL, 10);
    fclose(f);
    return kib << 10;
}

static struct graph *import_external(const struct external_model *o)
{
    static const char *const frozen[] = { "c" };
    const struct graph_opts opts = { .path = o->model, .frozen = frozen, .n_frozen = 1 };
    struct graph *g = NULL;
    struct err err;

    if (graph_import(&opts, &g, &err) < 0)
        fail_msg("%s", err.text);
    return g;
}

/* Asserts that the import allocates no private memory for the data, that the copy allocates only
 * the arena, and that pages of the file are not kept. */
static void copied_once(enum tensor_dtype dtype, float second, float last)
{
    const size_t all = (size_t)ROWS * COLUMNS * sizeof(float), slack = 8 << 20;
    struct external_model o = external_new(dtype);
    size_t own = memory("RssAnon"), file = memory("RssFile") + memory("RssShmem"), most = 0;
    struct graph *g = import_external(&o);
    float *arena;

    assert_int_equal(g->n_params, 1);
    assert_true(g->file.external.files.n == 1);
    assert_ptr_equal(g->initials[0].from.data, mapping_data(g->file.external.files.at[0]));
    assert_ptr_equal(g->params[0].initial, dtype == TENSOR_F32 ? g->initials[0].from.data : NULL);
    assert_true(memory("RssAnon") < own + slack);
    arena = malloc(graph_arena_floats(g) * sizeof(*arena));
    assert_int_equal(graph_fill_initial(g, arena, NULL), 0);
    most = memory("RssFile") + memory("RssShmem");
    assert_true(most < file + slack);
    assert_true(memory("RssAnon") < own + all + slack);
    assert_true(arena[COLUMNS + 1] == second);
    assert_true(arena[(size_t)ROWS * COLUMNS - 1] == last);
    graph_release_initial(g);
    assert_int_equal(g->file.external.files.n, 0);
    assert_null(g->params[0].initial);
    graph_free(g);
    free(arena);
    external_free(&o);
}

static void external_data_is_copied_once(void **state)
{
    (void)state;
    copied_once(TENSOR_F32, 1 + 1.0f / COLUMNS, ROWS - 1 + (COLUMNS - 1.0f) / COLUMNS);
    copied_once(TENSOR_BF16, 1, 4080); /* bfloat16 keeps 8 bits */
}

/* A large constant of 16 bits is widened at import. */
static void frozen_external_data_of_16_bits_is_widened(void **state)
{
    static const char *const all[] = { "*" };
    struct external_model o = external_new(TENSOR_BF16);
    struct graph *g = NULL;
    uint32_t i, n = 0;

    (void)state;
    assert_int_equal(graph_import(&(struct graph_opts){ .path = o.model, .frozen = all, .n_frozen = 1 },
                                  &g, NULL), 0);
    for (i = 0; i < g->n_values; i++)
        if (strcmp(g->values[i].name, "w") == 0) {
            const float *w = g->values[i].tensor.data;

            assert_true(w[0] == 0 && w[COLUMNS] == 1 && w[3 * COLUMNS] == 3);
            n++;
        }
    assert_int_equal(n, 1);
    graph_free(g);
    external_free(&o);
}

/* Not a fixture, because cmocka installs its own handler for SIGBUS around fixtures. */
static void external_data_truncated_while_mapped_is_an_error(void **state)
{
    struct external_model o = external_new(TENSOR_F32);
    struct graph *g = import_external(&o);
    float *arena = malloc(graph_arena_floats(g) * sizeof(*arena));
    struct graph_value *c = NULL;
    struct err err = { 0 };
    uint32_t i;

    (void)state;
    assert_int_equal(truncate(o.data, 1 << 20), 0);
    assert_int_equal(graph_fill_initial(g, arena, &err), ERR_IO);
    assert_non_null(strstr(err.text, "'model.data' was truncated"));
    /* The constant was copied at import. */
    for (i = 0; i < g->n_values; i++)
        if (strcmp(g->values[i].name, "c") == 0)
            c = &g->values[i];
    assert_non_null(c);
    assert_true(((const float *)c->tensor.data)[1] == ROWS + 1.0f / COLUMNS);
    graph_free(g);
    free(arena);
    external_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_any_float_type_become_float32),
        cmocka_unit_test(remote_rows_come_from_the_file_in_any_float_type),
        cmocka_unit_test(frozen_parameters_have_the_values_of_the_file),
        cmocka_unit_test(missing_and_surplus_names_are_reported),
        cmocka_unit_test(other_prefixes_are_reported_and_mapped_by_the_job),
        cmocka_unit_test(other_shapes_and_types_are_refused_with_both_sides),
        cmocka_unit_test(weight_is_compared_in_any_order_of_dimensions),
        cmocka_unit_test(external_data_is_copied_once),
        cmocka_unit_test(frozen_external_data_of_16_bits_is_widened),
        cmocka_unit_test(external_data_truncated_while_mapped_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
