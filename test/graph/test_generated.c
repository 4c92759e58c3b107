/* test_generated.c - tables that the job makes larger than the model file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "graph/graph.h"
#include "harness/model.h"
#include "tensor/fill.h"

enum { ROWS = 300, WIDTH = 8 };

static struct model *model_with_table(void)
{
    struct model *m = model_new(17);

    model_input(m, "i", TENSOR_I64, shape_of(1, (int64_t)-1));
    model_weights(m, "emb", shape_of(2, (int64_t)1, (int64_t)WIDTH), 1);
    model_weights(m, "out", shape_of(2, (int64_t)WIDTH, (int64_t)3), 2);
    model_node(m, "Gather", "emb i", "h");
    model_node(m, "MatMul", "h out", "logits");
    model_output(m, "logits");
    return m;
}

static int import(const struct graph_opts *opts, struct graph **out, struct err *err)
{
    struct model *m = model_with_table();
    size_t n;
    const uint8_t *bytes = model_bytes(m, &n);
    int rc = graph_import_bytes(opts, bytes, n, out, err);

    model_free(m);
    return rc;
}

static bool always(const void *arg, const char *name, uint64_t rows, uint64_t width)
{
    (void)arg, (void)name, (void)rows, (void)width;
    return true;
}

static void local_and_remote_tables_have_the_same_generated_rows(void **state)
{
    const struct graph_table table = {
        .name = "emb", .rows = ROWS, .fill = TABLE_UNIFORM, .range = 0.5
    };
    const struct table_fill fill = table_fill_of(TABLE_UNIFORM, 0.5, 9, "emb");
    struct graph_opts opts = { .path = "test.onnx", .tables = &table, .n_tables = 1, .seed = 9 };
    struct graph *local = NULL, *remote = NULL;
    float expected[ROWS * WIDTH], some[20 * WIDTH], *arena;
    const struct graph_param *p;
    const struct graph_remote *r;
    uint32_t n, found = 0;

    (void)state;
    table_fill_rows(&fill, WIDTH, 0, ROWS, expected);
    assert_int_equal(import(&opts, &local, NULL), 0);
    arena = calloc(graph_arena_floats(local), sizeof(*arena));
    assert_int_equal(graph_fill_initial(local, arena, NULL), 0);
    p = graph_params(local, &n);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(p[i].name, "emb") == 0) {
            assert_int_equal(p[i].elements, ROWS * WIDTH);
            assert_memory_equal(arena + p[i].offset, expected, sizeof(expected));
            found++;
        }
    assert_int_equal(found, 1);
    opts.is_remote = always;
    assert_int_equal(import(&opts, &remote, NULL), 0);
    r = graph_remotes(remote, &n);
    assert_int_equal(n, 1);
    assert_int_equal(r[0].rows, ROWS);
    assert_int_equal(r[0].fill.kind, TABLE_UNIFORM);
    assert_int_equal(graph_fill_remote(remote, 0, 70, 20, some, NULL), 0);
    assert_memory_equal(some, expected + 70 * WIDTH, sizeof(some));
    assert_string_equal(graph_digest(local), graph_digest(remote));
    free(arena);
    graph_free(local);
    graph_free(remote);
}

/* 4 billion rows: only addresses, whose zeros nobody reads. */
static void remote_table_of_any_size_needs_no_memory(void **state)
{
    const struct graph_table table = { .name = "emb", .rows = UINT32_MAX, .fill = TABLE_ZEROS };
    const struct graph_opts opts = {
        .path = "test.onnx", .tables = &table, .n_tables = 1, .is_remote = always
    };
    struct graph *g = NULL;
    uint32_t n;

    (void)state;
    assert_int_equal(import(&opts, &g, NULL), 0);
    assert_int_equal(graph_remotes(g, &n)->rows, UINT32_MAX);
    graph_free(g);
}

static void initializer_that_cannot_be_such_a_table_is_refused(void **state)
{
    static const char *const frozen[] = { "emb" };
    static const struct {
        const char *name;
        uint32_t n_frozen;
        const char *text;
    } wrong[] = {
        { "embb", 0, "no initializer 'embb'; did you mean 'emb'?" },
        { "out", 0, "expected float32 [1, width]" },
        { "emb", 1, "is no table that is trained" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        const struct graph_table table = { .name = wrong[i].name, .rows = 9, .fill = TABLE_ZEROS };
        const struct graph_opts opts = { .path = "test.onnx",
                                         .tables = &table,
                                         .n_tables = 1,
                                         .frozen = frozen,
                                         .n_frozen = wrong[i].n_frozen };
        struct graph *g = NULL;
        struct err err = { 0 };

        assert_int_equal(import(&opts, &g, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, wrong[i].text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_and_remote_tables_have_the_same_generated_rows),
        cmocka_unit_test(remote_table_of_any_size_needs_no_memory),
        cmocka_unit_test(initializer_that_cannot_be_such_a_table_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
