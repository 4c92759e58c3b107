/* Networks of PyTorch's exporter have the module's parameters with the module's names, shapes and
 * values, and compute the same as the file; files that lack a parameter are refused. The oracle is
 * modules.txt, which make_modules.py writes from state_dict(). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

#include "base/err.h"
#include "graph/graph_priv.h"
#include "harness/net.h"

static struct graph *import_from(const char *file, bool all_constant)
{
    char path[256];
    struct graph_opts opts = { .path = path, .all_constant = all_constant };
    struct graph *g;
    struct err err = { 0 };

    snprintf(path, sizeof(path), "test/graph/data/%s", file);
    if (graph_import(&opts, &g, &err) < 0)
        fail_msg("%s", err.text);
    return g;
}

/* ---- names, shapes and values ---- */

static const struct graph_tensor *find_tensor(const struct graph *g, const char *name)
{
    uint32_t n, i;
    const struct graph_tensor *t = graph_module_tensors(g, &n);

    for (i = 0; i < n; i++)
        if (t[i].is_param && strcmp(t[i].name, name) == 0)
            return &t[i];
    return NULL;
}

/* One line of modules.txt: "file name crc dim dim ...". */
static void check_line(const struct graph *g, const float *arena, const char *name,
                       const char *rest)
{
    const struct graph_tensor *t = find_tensor(g, name);
    uint32_t expected, found, d = 0;
    char *at;

    if (t == NULL)
        fail_msg("the module has '%s', the graph does not", name);
    expected = (uint32_t)strtoul(rest, &at, 16);
    while (*at == ' ') {
        if (d == t->tensor.shape.rank || strtoll(at, &at, 10) != t->tensor.shape.dim[d])
            fail_msg("'%s' has another shape than in the module", name);
        d++;
    }
    assert_int_equal(d, t->tensor.shape.rank);
    found = (uint32_t)crc32(0, (const unsigned char *)(arena + t->offset),
                            (unsigned)(tensor_elements(&t->tensor) * sizeof(float)));
    if (found != expected)
        fail_msg("'%s' has other values than in the module", name);
}

/* Returns the lines checked. `unused`: prefix of names that the file cannot have; or NULL. */
static uint32_t check_file(const char *file, const struct graph *g, const char *unused)
{
    float *arena = calloc(graph_arena_floats(g) + 1, sizeof(*arena));
    FILE *f = fopen("test/graph/data/modules.txt", "r");
    char line[512], name[256], of[128];
    struct err err = { 0 };
    uint32_t checked = 0;
    int used;

    assert_non_null(arena);
    assert_non_null(f);
    assert_int_equal(graph_fill_initial(g, arena, &err), 0);
    while (fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%127s %255s %n", of, name, &used) != 2 || strcmp(of, file) != 0 ||
            (unused != NULL && strncmp(name, unused, strlen(unused)) == 0))
            continue;
        check_line(g, arena, name, line + used);
        checked++;
    }
    fclose(f);
    free(arena);
    return checked;
}

static void restored_parameters_match_the_module(void **state)
{
    static const struct {
        const char *file, *unused;
        uint32_t lines, params; /* number of names of the module, and of different parameters */
    } cases[] = {
        { "module_linear.onnx", "spare.", 2, 2 },
        { "module_norms.onnx", NULL, 10, 10 },
        { "module_tied.onnx", NULL, 10, 7 },
        { "module_tied_raw.onnx", NULL, 10, 7 },
        { "module_transposed.onnx", NULL, 3, 3 },
        { "module_convolutions.onnx", NULL, 11, 11 },
        { "module_lstm.onnx", NULL, 18, 18 },
        { "module_gru.onnx", NULL, 6, 6 },
        { "module_functions_raw.onnx", NULL, 3, 3 },
        { "module_detached_raw.onnx", NULL, 4, 4 },
        { "module_detached_weight_raw.onnx", NULL, 1, 1 },
        { "module_merged_norms_raw.onnx", NULL, 8, 8 },
        { "module_repeated.onnx", "spare.", 2, 2 },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct graph *g = import_from(cases[i].file, false);
        uint32_t n;

        (void)graph_params(g, &n);
        if (n != cases[i].params)
            fail_msg("%s: %u parameters, expected %u", cases[i].file, n, cases[i].params);
        assert_int_equal(check_file(cases[i].file, g, cases[i].unused), cases[i].lines);
        graph_free(g);
    }
}

/* ---- second names ---- */

static bool lists(const struct graph *g, const char *name)
{
    uint32_t n, i;
    const struct graph_tensor *t = graph_module_tensors(g, &n);

    for (i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return true;
    return false;
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

static void tensors_are_listed_under_the_names_that_the_job_ties(void **state)
{
    static const struct graph_rename ties[] = {
        { "a.weight", "b.weight" },
        { "b.bias", "a.bias" },
        { "n.weight", "more.0.weight" },
        { "n.bias", "more.0.bias" },
        { "n.scale", "more.0.scale" }, /* a buffer */
        { "more.0.bias", "n.bias" },   /* known already */
    };
    struct graph_opts opts = { .path = "test/graph/data/module_shared_raw.onnx" };
    struct err err = { 0 };
    struct graph *g;
    size_t i;

    (void)state;
    assert_int_equal(graph_import(&opts, &g, &err), 0);
    assert_false(lists(g, "a.weight"));
    assert_true(lists(g, "b.weight"));
    assert_true(has_note(
        g,
        "6 parameters that the signature lists are in no tensor of the file (first 'a.weight')"));
    assert_true(has_note(g, "\"tied\": {\"a.weight\": \"NAME IN THE FILE\"}"));
    graph_free(g);
    opts.ties = ties;
    opts.n_ties = sizeof(ties) / sizeof(ties[0]);
    if (graph_import(&opts, &g, &err) < 0)
        fail_msg("%s", err.text);
    for (i = 0; i < opts.n_ties; i++) {
        assert_true(lists(g, ties[i].graph));
        assert_true(lists(g, ties[i].file));
    }
    assert_true(has_note(
        g,
        "2 parameters that the signature lists are in no tensor of the file (first 'spare.weight')"));
    assert_int_equal(check_file("module_shared_raw.onnx", g, "spare."), 8);
    graph_free(g);
}

static void invalid_ties_are_refused(void **state)
{
    static const struct {
        const char *file;
        struct graph_rename tie;
        const char *text;
    } cases[] = {
        { "module_shared_raw.onnx", { "a.wieght", "b.weight" }, "no parameter or buffer 'a.wieght'; did you mean 'a.weight'?" },
        { "module_shared_raw.onnx", { "more.0.weight", "b.weight" }, "the file has a tensor for each of" },
        { "module_shared_raw.onnx", { "a.weight", "spare.weight" }, "no tensor for 'a.weight' and none for 'spare.weight'" },
        { "mlp.onnx", { "a", "b" }, "the file does not have the signature of the module" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[256];
        const struct graph_opts opts = { .path = path, .ties = &cases[i].tie, .n_ties = 1 };
        struct err err = { 0 };
        struct graph *g;

        snprintf(path, sizeof(path), "test/graph/data/%s", cases[i].file);
        assert_int_equal(graph_import(&opts, &g, &err), ERR_INPUT);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("'%s' is not in: %s", cases[i].text, err.text);
    }
}

/* ---- outputs ---- */

/* Output 0 for one batch; the caller frees it. */
static float *run_once(struct graph *g, size_t *n)
{
    uint32_t n_in, n_out;
    const struct graph_io *in = graph_inputs(g, &n_in), *out = graph_outputs(g, &n_out);
    const char *keep[] = { out[0].name };
    struct plan_feed feed = { .name = in[0].name, .dtype = TENSOR_F32, .shape = in[0].shape };
    const struct plan_opts opts = {
        .purpose = PLAN_RUN, .batch = 1, .feeds = &feed, .n_feeds = 1, .keep = keep, .n_keep = 1
    };
    const struct op_run run = { .seed = 1, .loss_scale = 1 };
    float *params = calloc(graph_arena_floats(g) + 16, sizeof(*params)), *result;
    struct err err = { 0 };
    const struct tensor *x;
    struct plan *p;
    void *work;
    int64_t i;

    if (plan_new(g, &opts, &p, &err) < 0)
        fail_msg("%s", err.text);
    work = aligned_alloc(64, (plan_work_bytes(p) + 127) / 64 * 64);
    assert_non_null(work);
    assert_int_equal(graph_fill_initial(g, params, &err), 0);
    plan_bind(p, params, work);
    x = plan_input(p, 0);
    for (i = 0; i < tensor_elements(x); i++)
        ((float *)x->data)[i] = (float)((37 * i) % 61 - 30) / 16;
    if (plan_forward(p, &run, &err) < 0)
        fail_msg("%s", err.text);
    *n = (size_t)tensor_elements(plan_tensor(p, out[0].name));
    result = malloc(*n * sizeof(*result));
    memcpy(result, plan_tensor(p, out[0].name)->data, *n * sizeof(*result));
    plan_free(p);
    free(params);
    free(work);
    return result;
}

static void restored_graph_computes_what_the_file_computes(void **state)
{
    static const char *const files[] = { "module_norms.onnx",      "module_tied.onnx",
                                         "module_transposed.onnx", "module_convolutions.onnx",
                                         "module_lstm.onnx",       "module_gru.onnx" };
    size_t i, k, n, m;

    (void)state;
    for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct graph *restored = import_from(files[i], false), *plain = import_from(files[i], true);
        float *a = run_once(restored, &n), *b = run_once(plain, &m);

        assert_int_equal(n, m);
        for (k = 0; k < n; k++)
            if (!(fabsf(a[k] - b[k]) <= 1e-5f * (1 + fabsf(b[k]))))
                fail_msg("%s: element %zu is %.9g restored and %.9g unchanged", files[i], k,
                         (double)a[k], (double)b[k]);
        free(a);
        free(b);
        graph_free(restored);
        graph_free(plain);
    }
}

/* An export contains the parameters of the module too. */
static void exported_file_is_imported_with_the_same_parameters(void **state)
{
    static const char *const files[] = { "module_norms.onnx", "module_tied.onnx",
                                         "module_convolutions.onnx", "module_lstm.onnx" };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct graph *g = import_from(files[i], false), *again;
        char path[] = "/tmp/test-restore-XXXXXX";
        struct graph_opts opts = { .path = path };
        float *arena = calloc(graph_arena_floats(g) + 1, sizeof(*arena));
        struct err err = { 0 };
        int fd = mkstemp(path);
        uint32_t n, m;

        assert_true(fd >= 0);
        close(fd);
        assert_int_equal(graph_fill_initial(g, arena, &err), 0);
        if (graph_export(g, arena, path, &err) < 0 || graph_import(&opts, &again, &err) < 0)
            fail_msg("%s", err.text);
        (void)graph_params(g, &n);
        (void)graph_params(again, &m);
        assert_int_equal(n, m);
        assert_true(check_file(files[i], again, NULL) > 0);
        (void)unlink(path);
        free(arena);
        graph_free(again);
        graph_free(g);
    }
}

/* ---- detach ---- */

/* The loss is the sum of b(detach(h)) + h over 4 rows, h = a(x): the bias of a gets 4. */
static void gradient_stops_at_a_detach(void **state)
{
    struct graph *g = import_from("module_detached_raw.onnx", false);
    uint32_t n, i, k;
    const struct graph_param *p = graph_params(g, &n);
    const struct graph_io *in = graph_inputs(g, &i);
    struct plan_feed feed = { .name = in[0].name, .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)6) };
    const struct plan_opts opts = {
        .purpose = PLAN_TRAIN, .batch = 4, .feeds = &feed, .n_feeds = 1, .sum_outputs = true
    };
    const struct op_run run = { .seed = 1, .loss_scale = 1 };
    size_t floats = graph_arena_floats(g) + 16;
    float *params = calloc(floats, sizeof(*params)), *grads = calloc(floats, sizeof(*grads));
    struct err err = { 0 };
    struct plan *plan;
    void *work;

    (void)state;
    if (plan_new(g, &opts, &plan, &err) < 0)
        fail_msg("%s", err.text);
    work = aligned_alloc(64, (plan_work_bytes(plan) + 127) / 64 * 64);
    assert_int_equal(graph_fill_initial(g, params, &err), 0);
    plan_bind(plan, params, work);
    memset((void *)(uintptr_t)plan_input(plan, 0)->data, 0, tensor_bytes(plan_input(plan, 0)));
    assert_int_equal(plan_forward(plan, &run, &err), 0);
    assert_int_equal(plan_backward(plan, &run, grads, NULL, NULL, &err), 0);
    for (i = 0; i < n; i++)
        for (k = 0; strcmp(p[i].name, "a.bias") == 0 && k < 6; k++)
            assert_float_equal(grads[p[i].offset + k], 4, 1e-5);
    plan_free(plan);
    graph_free(g);
    free(params);
    free(grads);
    free(work);
}

/* ---- refusals ---- */

static void file_without_parameters_is_refused_with_remedy(void **state)
{
    static const struct {
        const char *file, *what, *frozen; /* NULL: freezing does not help */
    } cases[] = {
        { "module_functions.onnx", "computed 'add' from the parameter 'w'", "w" },
        { "module_part.onnx", "computed 'slice_1' from the parameter 'pos'", "slice_1" },
        { "module_vanished.onnx", "lists the parameter 'scale'", "scale" },
        { "module_weight_norm.onnx", "computed 'mul' from 2 parameters", "mul" },
        { "module_batch_norm.onnx", "changed the values of the parameter '0.weight'", NULL },
        { "module_detached.onnx", "reads a tensor that the module detaches", NULL },
        { "module_detached_weight.onnx", "reads a tensor that the module detaches", "w" },
        { "module_merged_detach.onnx", "Add 'node_add' reads 'linear_1' of the module, which the exporter merged",
          "w" },
        { "module_merged_norms.onnx", "parameter 'n2.weight', no tensor of the file contains it, and the exporter "
          "removed or merged a node ('layer_norm_1')", NULL },
        { "module_merged_tokens.onnx", "removed or merged a node ('maximum_1') that may have read it", NULL },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[256];
        struct graph_opts opts = { .path = path };
        struct graph *g;
        struct err err = { 0 };

        snprintf(path, sizeof(path), "test/graph/data/%s", cases[i].file);
        assert_int_equal(graph_import(&opts, &g, &err), ERR_INPUT);
        if (strstr(err.text, cases[i].what) == NULL || strstr(err.text, "optimize=False") == NULL)
            fail_msg("'%s' or the remedy is not in: %s", cases[i].what, err.text);
        opts.collect_questions = true;
        assert_int_equal(graph_import(&opts, &g, &err), 0);
        assert_non_null(strstr(graph_question(g), cases[i].what));
        graph_free(g);
        if (cases[i].frozen == NULL)
            continue;
        opts = (struct graph_opts){ .path = path, .frozen = &cases[i].frozen, .n_frozen = 1 };
        if (graph_import(&opts, &g, &err) < 0)
            fail_msg("refused although frozen: %s", err.text);
        graph_free(g);
    }
}

static void job_patterns_override_the_file(void **state)
{
    const char *all[] = { "*" }, *head[] = { "4.*" };
    const struct graph_opts opts = { .path = "test/graph/data/module_norms.onnx",
                                     .frozen = all,
                                     .n_frozen = 1,
                                     .trainable = head,
                                     .n_trainable = 1 };
    struct graph *g;
    struct err err = { 0 };
    uint32_t n, i;
    const struct graph_param *p;

    (void)state;
    assert_int_equal(graph_import(&opts, &g, &err), 0);
    p = graph_params(g, &n);
    assert_int_equal(n, 2);
    for (i = 0; i < n; i++)
        assert_true(strncmp(p[i].name, "4.", 2) == 0);
    graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_listed_under_the_names_that_the_job_ties),
        cmocka_unit_test(invalid_ties_are_refused),
        cmocka_unit_test(restored_parameters_match_the_module),
        cmocka_unit_test(restored_graph_computes_what_the_file_computes),
        cmocka_unit_test(exported_file_is_imported_with_the_same_parameters),
        cmocka_unit_test(gradient_stops_at_a_detach),
        cmocka_unit_test(file_without_parameters_is_refused_with_remedy),
        cmocka_unit_test(job_patterns_override_the_file),
    };

    return cmocka_run_group_tests_name("graph/restore", tests, NULL, NULL);
}
