/* Export: accepted by onnx.checker, imports as the same network, and is atomic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "graph/graph_priv.h"
#include "harness/model.h"
#include "harness/net.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/test_export-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return fs_remove_tree(folder, NULL);
}

static const char *in_folder(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static uint32_t files_in_folder(void)
{
    char command[128];
    FILE *f;
    int n = -1;

    snprintf(command, sizeof(command), "ls -A %s | wc -l", folder);
    f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    assert_int_equal(pclose(f), 0);
    return (uint32_t)n;
}

static struct graph *import_path(const char *path)
{
    /* An export is in inference form. */
    struct graph_opts opts = { .path = path, .batch_norm = GRAPH_NORM_FROZEN };
    struct err err = { 0 };
    struct graph *g;

    if (graph_import(&opts, &g, &err) < 0)
        fail_msg("%s", err.text);
    return g;
}

static const struct graph_param *find(const struct graph *g, const char *name)
{
    uint32_t n, i;
    const struct graph_param *p = graph_params(g, &n);

    for (i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return &p[i];
    return NULL;
}

/* Sets other values than those in the file. */
static void change_weights(struct net *n)
{
    uint32_t i;
    size_t k;

    for (i = 0; i < n->n_params; i++)
        for (k = 0; k < n->params_of[i].elements; k++)
            n->params[n->params_of[i].offset + k] *= 1.0f + 0.25f / (float)(1 + k % 5);
}

static void check_round_trip(const char *name)
{
    struct net n = net_open(name, PLAN_EVAL, 4), again;
    struct err err = { 0 };
    const char *path = in_folder(name);
    float before, after;
    uint32_t i;

    change_weights(&n);
    net_fill(&n, 0);
    before = net_forward(&n);
    graph_release_initial(n.graph); /* only the new values are compared */
    graph_release_initial(n.graph);
    if (graph_export(n.graph, n.params, path, &err) < 0)
        fail_msg("%s", err.text);
    again = net_open_graph(import_path(path), PLAN_EVAL, 4);
    net_fill(&again, 0);
    after = net_forward(&again);
    assert_true(before == after);
    for (i = 0; i < n.n_params; i++) {
        const struct graph_param *p = find(again.graph, n.params_of[i].name);

        if (p == NULL) { /* statistics of a network in inference form do not change */
            assert_int_equal(n.params_of[i].kind, GRAPH_STATISTIC);
            continue;
        }
        assert_memory_equal(p->initial, n.params + n.params_of[i].offset,
                            p->elements * sizeof(float));
    }
    net_close(&n);
    net_close(&again);
}

static void released_initial_values_are_freed_and_constants_remain(void **state)
{
    struct graph *g = net_import("cnn_17.onnx");
    uint32_t n, i;
    const struct graph_param *p = graph_params(g, &n);

    (void)state;
    for (i = 0; i < n; i++)
        assert_non_null(p[i].initial);
    graph_release_initial(g);
    for (i = 0; i < n; i++)
        assert_null(p[i].initial);
    for (i = 0; i < g->n_values; i++) /* constants are needed as long as there are plans */
        if (g->values[i].kind == VALUE_CONST)
            assert_non_null(g->values[i].tensor.data);
    graph_free(g);
}

static void exported_model_is_valid_and_computes_the_same(void **state)
{
    static const char *const names[] = { "mlp.onnx",      "mlp_external.onnx", "cnn_11.onnx",
                                         "cnn_17.onnx",   "residual.onnx",     "tied.onnx",
                                         "identity.onnx", "dropout_11.onnx",   "dropout_17.onnx" };
    struct buf command = { 0 };
    size_t i;

    (void)state;
    buf_str(&command, "/usr/bin/python3 test/graph/check_export.py");
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        check_round_trip(names[i]);
        buf_printf(&command, " test/graph/data/%s %s", names[i], in_folder(names[i]));
    }
    if (system(command.data) != 0)
        fail_msg("%s", command.data);
    buf_fini(&command);
}

static void export_with_equal_weights_has_equal_size(void **state)
{
    struct net n = net_open("mlp.onnx", PLAN_TRAIN, 1);
    struct buf a = { 0 }, b = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(graph_export(n.graph, n.params, in_folder("same.onnx"), &err), 0);
    assert_int_equal(fs_read("test/graph/data/mlp.onnx", 1 << 20, &a, &err), 0);
    assert_int_equal(fs_read(in_folder("same.onnx"), 1 << 20, &b, &err), 0);
    assert_int_equal(a.len, b.len); /* unknown fields move after the known ones */
    buf_fini(&a);
    buf_fini(&b);
    net_close(&n);
}

/* Before IR version 4 every initializer had to be an input too; the exported ones need not be. */
static void identity_copies_raise_old_ir_version(void **state)
{
    struct net n = net_open("identity.onnx", PLAN_TRAIN, 1);
    struct err err = { 0 };
    struct graph *again;

    (void)state;
    n.graph->file.model->ir_version = 3;
    assert_int_equal(graph_export(n.graph, n.params, in_folder("old.onnx"), &err), 0);
    again = import_path(in_folder("old.onnx"));
    assert_int_equal(again->file.model->ir_version, 4);
    graph_free(again);
    net_close(&n);
}

static struct model *large(void)
{
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)64));
    model_weights(m, "w1", shape_of(2, (int64_t)64, (int64_t)64), 1);
    model_weights(m, "b1", shape_of(1, (int64_t)64), 2);
    model_weights(m, "w2", shape_of(2, (int64_t)64, (int64_t)8), 3);
    model_node(m, "Gemm", "x w1 b1", "h");
    model_node(m, "MatMul", "h w2", "logits");
    model_output(m, "logits");
    return m;
}

static void large_model_is_exported_with_external_data(void **state)
{
    struct model *m = large();
    struct net n = net_open_model(m, PLAN_EVAL, 4), again;
    struct err err = { 0 };
    struct stat st;
    char command[256], data[256];

    (void)state;
    change_weights(&n);
    net_fill(&n, 0);
    assert_int_equal(graph_export_split(n.graph, n.params, NULL, in_folder("big.onnx"), 1000, &err),
                     0);
    snprintf(data, sizeof(data), "%s.data", in_folder("big.onnx"));
    assert_int_equal(stat(data, &st), 0);
    assert_int_equal(st.st_size, 16384 + 2048); /* w1, w2; b1 remains in the model */
    assert_int_equal(stat(in_folder("big.onnx"), &st), 0);
    assert_true(st.st_size < 1000);
    snprintf(command, sizeof(command),
             "/usr/bin/python3 -c \"import onnx; onnx.checker.check_model('%s')\"",
             in_folder("big.onnx"));
    assert_int_equal(system(command), 0);
    again = net_open_graph(import_path(in_folder("big.onnx")), PLAN_EVAL, 4);
    net_fill(&again, 0);
    assert_true(net_forward(&n) == net_forward(&again));

    /* A model with external data is exported with inline data. */
    assert_int_equal(graph_export(again.graph, again.params, in_folder("whole.onnx"), &err), 0);
    assert_int_equal(unlink(data), 0);
    net_close(&again);
    again = net_open_graph(import_path(in_folder("whole.onnx")), PLAN_EVAL, 4);
    net_fill(&again, 0);
    assert_true(net_forward(&n) == net_forward(&again));
    net_close(&again);
    net_close(&n);
    model_free(m);
}

/* Fails the 1st, 2nd, ... passage of any fault point, until none is reached. */
static void failed_export_keeps_the_previous_file(void **state)
{
    struct model *m = large();
    struct net n = net_open_model(m, PLAN_EVAL, 4);
    struct err err = { 0 };
    struct buf old = { 0 }, new = { 0 }, now = { 0 };
    uint32_t files, failures = 0, i;
    char path[128];

    (void)state;
    strcpy(path, in_folder("kept.onnx"));
    assert_int_equal(graph_export(n.graph, n.params, path, &err), 0);
    assert_int_equal(fs_read(path, 1 << 20, &old, &err), 0);
    change_weights(&n);
    assert_int_equal(graph_export(n.graph, n.params, in_folder("new.onnx"), &err), 0);
    assert_int_equal(fs_read(in_folder("new.onnx"), 1 << 20, &new, &err), 0);
    assert_int_equal(old.len, new.len);
    files = files_in_folder();
    for (i = 1; i < 100; i++) {
        char spec[32];
        int rc;

        snprintf(spec, sizeof(spec), "*@%u", i);
        assert_int_equal(fault_arm(spec, &err), 0);
        rc = graph_export(n.graph, n.params, path, &err);
        if (!fault_fired()) {
            assert_int_equal(rc, 0);
            break;
        }
        assert_int_equal(fault_arm(NULL, &err), 0);
        assert_int_equal(files_in_folder(), files);
        buf_reset(&now);
        assert_int_equal(fs_read(path, 1 << 20, &now, &err), 0);
        assert_int_equal(now.len, old.len);
        assert_true(rc < 0);
        if (memcmp(now.data, old.data, old.len) == 0)
            failures++;
        else /* the sync of the folder follows the rename */
            assert_memory_equal(now.data, new.data, new.len);
    }
    assert_int_equal(fault_arm(NULL, &err), 0);
    assert_in_range(failures, 3, 98); /* write, sync, rename at least */
    buf_fini(&old);
    buf_fini(&new);
    buf_fini(&now);
    net_close(&n);
    model_free(m);
}

static void export_to_absent_folder_fails(void **state)
{
    struct net n = net_open("mlp.onnx", PLAN_TRAIN, 1);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(graph_export(n.graph, n.params, in_folder("no/such/m.onnx"), &err), ERR_NOENT);
    assert_non_null(strstr(err.text, "no/such/m.onnx"));
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_initial_values_are_freed_and_constants_remain),
        cmocka_unit_test(exported_model_is_valid_and_computes_the_same),
        cmocka_unit_test(export_with_equal_weights_has_equal_size),
        cmocka_unit_test(identity_copies_raise_old_ir_version),
        cmocka_unit_test(large_model_is_exported_with_external_data),
        cmocka_unit_test(failed_export_keeps_the_previous_file),
        cmocka_unit_test(export_to_absent_folder_fails),
    };

    return cmocka_run_group_tests_name("graph/export", tests, make_folder, remove_folder);
}
