/* The table of networks, and each network through the importer, without files.
 * test/e2e/test_model.py compares the networks with ONNX Runtime. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/build.h"
#include "graph/graph.h"
#include "zoo/zoo.h"

/* Values that keep the models of these tests below some MiB. */
static const struct {
    const char *key;
    int64_t value;
} small[] = { { "size", 32 },    { "vocabulary", 100 }, { "context", 16 },
              { "sequence", 8 }, { "rows", 50 },        { "layers", 1 } };

static void small_values(const struct zoo_def *def, int64_t values[ZOO_KEYS])
{
    size_t k, i;

    memset(values, 0, ZOO_KEYS * sizeof(values[0]));
    for (k = 0; k < ZOO_KEYS && def->keys[k].name != NULL; k++) {
        values[k] = def->keys[k].value;
        for (i = 0; i < COUNT_OF(small); i++)
            if (strcmp(def->keys[k].name, small[i].key) == 0)
                values[k] = small[i].value;
    }
}

/* The serialized model; the caller frees it. */
static uint8_t *make(const struct zoo_def *def, uint64_t seed, size_t *n)
{
    int64_t values[ZOO_KEYS];
    struct build *b = NULL;
    struct err err = { 0 };
    uint8_t *bytes;

    small_values(def, values);
    if (zoo_build(def, values, seed, &b, &err) != 0)
        fail_msg("%s", err.text);
    assert_false(build_failed(b));
    *n = onnx__model_proto__get_packed_size(build_proto(b));
    bytes = malloc(*n);
    assert_non_null(bytes);
    assert_int_equal(onnx__model_proto__pack(build_proto(b), bytes), *n);
    build_free(b);
    return bytes;
}

static void table_defaults_lie_in_their_ranges_and_names_are_unique(void **state)
{
    size_t n, i, k;
    const struct zoo_def *all = zoo_all(&n);

    (void)state;
    assert_true(n > 0);
    for (i = 0; i < n; i++) {
        assert_non_null(all[i].doc);
        for (k = 0; k < i; k++)
            assert_string_not_equal(all[i].name, all[k].name);
        for (k = 0; k < ZOO_KEYS && all[i].keys[k].name != NULL; k++) {
            assert_true(all[i].keys[k].lo <= all[i].keys[k].value);
            assert_true(all[i].keys[k].value <= all[i].keys[k].hi);
            assert_non_null(all[i].keys[k].doc);
        }
    }
}

static void network_of_each_row_is_imported(void **state)
{
    size_t n, i, size;
    const struct zoo_def *all = zoo_all(&n);

    (void)state;
    for (i = 0; i < n; i++) {
        const struct graph_opts opts = { .path = all[i].name };
        uint8_t *bytes = make(&all[i], 0, &size);
        struct graph *g = NULL;
        struct err err = { 0 };

        if (graph_import_bytes(&opts, bytes, size, &g, &err) != 0)
            fail_msg("%s: %s", all[i].name, err.text);
        graph_free(g);
        free(bytes);
    }
}

static void weights_depend_only_on_the_seed(void **state)
{
    size_t n, i, n_a, n_b, n_c;
    const struct zoo_def *all = zoo_all(&n);

    (void)state;
    for (i = 0; i < n; i++) {
        uint8_t *a = make(&all[i], 1, &n_a), *b = make(&all[i], 1, &n_b),
                *c = make(&all[i], 2, &n_c);

        assert_int_equal(n_a, n_b);
        assert_memory_equal(a, b, n_a);
        assert_true(n_a != n_c || memcmp(a, c, n_a) != 0);
        free(a);
        free(b);
        free(c);
    }
}

static void contradictory_values_are_rejected(void **state)
{
    size_t n, i, k;
    const struct zoo_def *all = zoo_all(&n);
    struct build *unchanged = NULL;
    int64_t values[ZOO_KEYS];
    struct err err = { 0 };

    (void)state;
    for (i = 0; strcmp(all[i].name, "gpt2") != 0; i++)
        assert_true(i + 1 < n);
    small_values(&all[i], values);
    for (k = 0; strcmp(all[i].keys[k].name, "heads") != 0; k++)
        assert_non_null(all[i].keys[k + 1].name);
    values[k] = 7; /* does not divide the width of 768 */
    assert_int_equal(zoo_build(&all[i], values, 0, &unchanged, &err), ERR_INPUT);
    assert_string_equal(err.text, "gpt2: heads must divide width");
    assert_null(unchanged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_defaults_lie_in_their_ranges_and_names_are_unique),
        cmocka_unit_test(network_of_each_row_is_imported),
        cmocka_unit_test(weights_depend_only_on_the_seed),
        cmocka_unit_test(contradictory_values_are_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
