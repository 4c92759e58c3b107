/* Fusions in a GPU plan: the plan uses them, and the results are those of a CPU. The GPU is the
 * emulated one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "cuda/emulator.h"
#include "device/cuda.h"
#include "device/device.h"
#include "graph/plan_priv.h"
#include "harness/model.h"
#include "harness/net.h"

/* the emulated plugin, linked into this program */
extern const struct cuda_api trainerd_cuda_plugin;

enum { BATCH = 5, WIDTH = 16, HIDDEN = 40, CLASSES = 3 };

static const struct cuda_api *const cuda = &trainerd_cuda_plugin;
static struct cuda_stream *stream;
static struct err err;

static void must(int rc)
{
    if (rc < 0)
        fail_msg("%s", err.text);
}

static int open_gpu(void **state)
{
    (void)state;
    must(cuda->enter(0, &err));
    must(cuda->stream_open(CUDA_HIGH_PRIORITY, &stream, &err));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    cuda->stream_close(stream);
    assert_int_equal(emulated_live_bytes(), 0);
    return 0;
}

static void copy(void *to, const void *from, size_t bytes)
{
    must(cuda->copy(to, from, bytes, stream, &err));
    must(device_wait(cuda, stream, NULL, NULL, &err));
}

static void *upload(const void *from, size_t bytes)
{
    void *p;

    must(cuda->alloc(&p, bytes, &err));
    copy(p, from, bytes);
    return p;
}

/* ---- networks ---- */

static struct model *begin(void)
{
    struct model *m = model_new(20);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)WIDTH));
    return m;
}

/* Adds y = x y.w + y.b, as MatMul and Add, or as Gemm. */
static void add_layer(struct model *m, const char *x, const char *y, int64_t from, int64_t to,
                      bool gemm)
{
    char in[96], name[32];

    snprintf(name, sizeof(name), "%s.w", y);
    model_weights(m, name, gemm ? shape_of(2, to, from) : shape_of(2, from, to),
                  (uint64_t)y[0] + (uint64_t)y[1]);
    snprintf(name, sizeof(name), "%s.b", y);
    model_weights(m, name, shape_of(1, to), 7);
    snprintf(in, sizeof(in), gemm ? "%s %s.w %s.b" : "%s %s.w", x, y, y);
    if (gemm) {
        model_node(m, "Gemm", in, y);
        model_int(m, "transB", 1);
        return;
    }
    snprintf(name, sizeof(name), "%s.product", y);
    model_node(m, "MatMul", in, name);
    snprintf(in, sizeof(in), "%s.product %s.b", y, y);
    model_node(m, "Add", in, y);
}

static void add_norm(struct model *m, const char *x, const char *y)
{
    char in[96], name[32];

    snprintf(name, sizeof(name), "%s.scale", y);
    model_weights(m, name, shape_of(1, (int64_t)WIDTH), 5);
    snprintf(name, sizeof(name), "%s.bias", y);
    model_weights(m, name, shape_of(1, (int64_t)WIDTH), 6);
    snprintf(in, sizeof(in), "%s %s.scale %s.bias", x, y, y);
    model_node(m, "LayerNormalization", in, y);
}

/* A transformer block without attention. */
static struct model *block(bool is_tanh)
{
    struct model *m = begin();

    add_norm(m, "x", "n0");
    add_layer(m, "n0", "a1", WIDTH, WIDTH, false);
    model_node(m, "Add", "x a1", "s1");
    add_norm(m, "s1", "n1");
    add_layer(m, "n1", "u1", WIDTH, HIDDEN, false);
    model_node(m, "Gelu", "u1", "g1");
    if (is_tanh)
        model_string(m, "approximate", "tanh");
    add_layer(m, "g1", "d1", HIDDEN, WIDTH, false);
    model_node(m, "Add", "s1 d1", "s2");
    add_norm(m, "s2", "n2");
    model_weights(m, "head", shape_of(2, (int64_t)WIDTH, (int64_t)CLASSES), 9);
    model_node(m, "MatMul", "n2 head", "logits");
    model_output(m, "logits");
    return m;
}

static struct model *relu_layers(void)
{
    struct model *m = begin();

    add_layer(m, "x", "h1", WIDTH, HIDDEN, true);
    model_node(m, "Relu", "h1", "r1");
    add_layer(m, "r1", "logits", HIDDEN, CLASSES, true);
    model_output(m, "logits");
    return m;
}

/* ---- comparison of GPU and CPU ---- */

static uint32_t nodes_of(const struct plan *p, const char *op)
{
    uint32_t found = 0;
    size_t i;

    for (i = 0; i < p->nodes.n; i++)
        found += strcmp(p->nodes.at[i].def->name, op) == 0;
    return found;
}

static struct plan *gpu_plan(const struct graph *g, enum plan_precision precision)
{
    static const char *const logits[] = { "logits" };
    struct plan_feed feed = { .name = "x", .dtype = TENSOR_F32, .shape = shape_of(1, (int64_t)WIDTH) };
    struct plan_opts o = { .purpose = PLAN_TRAIN, .batch = BATCH, .precision = precision, .feeds = &feed,
                           .n_feeds = 1, NET_LOSS, .keep = logits, .n_keep = 1, .cuda = cuda };
    struct plan *p;

    must(plan_new(g, &o, &p, &err));
    return p;
}

/* Runs one forward and backward of the GPU plan; returns the loss, and the gradients in `grads`
 * [arena]. */
static float gpu_step(struct plan *p, const struct net *like, float *grads)
{
    struct op_run run = like->run;
    void *params = upload(like->params, like->arena_bytes),
         *sums = upload(like->grads, like->arena_bytes), *work;
    uint32_t i;

    run.device = upload(&run, sizeof(run));
    run.queue = stream;
    must(cuda->alloc(&work, plan_work_bytes(p), &err));
    must(cuda->fill(work, 0xFF, plan_work_bytes(p), stream, &err));
    plan_bind(p, params, work);
    for (i = 0; i < 3; i++)
        copy(plan_input(p, i)->data, plan_input(like->plan, i)->data,
             tensor_bytes(plan_input(p, i)));
    must(plan_forward(p, &run, &err));
    must(plan_backward(p, &run, sums, NULL, NULL, &err));
    copy(grads, sums, like->arena_bytes);
    cuda->free(params);
    cuda->free(sums);
    cuda->free(work);
    cuda->free((void *)(uintptr_t)run.device);
    return plan_loss(p);
}

/* Takes ownership of the model; returns the GPU plan, which the caller frees with its graph. */
static struct plan *compare(struct model *m, enum plan_precision precision, double tol,
                            struct graph **graph)
{
    struct net n = net_open_model(m, PLAN_TRAIN, BATCH);
    struct plan *p;
    float loss, *grads = malloc(n.arena_bytes);
    uint32_t i;

    *graph = net_import_model(m, NULL);
    p = gpu_plan(*graph, precision);
    assert_int_equal(nodes_of(n.plan, "Mlp"), 0); /* not used on a CPU */
    net_fill(&n, 0);
    loss = gpu_step(p, &n, grads);
    if (!(fabs((double)loss - (double)net_forward(&n)) <= tol))
        fail_msg("the loss is %g", (double)loss);
    net_backward(&n);
    for (i = 0; i < n.n_params; i++) {
        const float *a = grads + n.params_of[i].offset, *b = n.grads + n.params_of[i].offset;
        double off = 0, size = 0;
        size_t k;

        for (k = 0; k < n.params_of[i].elements; k++) {
            off += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
            size += (double)b[k] * (double)b[k];
        }
        if (!(off <= size * tol * tol))
            fail_msg("%s: the gradient is off by %g of %g", n.params_of[i].name, sqrt(off),
                     sqrt(size));
    }
    free(grads);
    net_close(&n);
    model_free(m);
    return p;
}

static uint64_t products(uint32_t epilogue)
{
    static uint64_t before[1024];
    uint64_t now = emulated_products(epilogue), since = now - before[epilogue];

    before[epilogue] = now;
    return since;
}

static uint64_t sums_beside_products(void)
{
    return products(CUBLASLT_EPILOGUE_BGRADA) + products(CUBLASLT_EPILOGUE_BGRADB);
}

static void transformer_block_on_gpu_fuses_functions_and_sums_into_products(void **state)
{
    static const double tol[] = { [PLAN_FLOAT32] = 1e-4, [PLAN_TF32] = 5e-3, [PLAN_BFLOAT16] = 0.03,
                                  [PLAN_FLOAT16] = 5e-3 };
    struct graph *g;
    struct plan *p;
    uint32_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(tol); i++) {
        (void)sums_beside_products();
        p = compare(block(true), (enum plan_precision)i, tol[i], &g);
        assert_int_equal(nodes_of(p, "Mlp"), 1);
        assert_int_equal(nodes_of(p, "LayerNormAdd"), 2);
        assert_int_equal(nodes_of(p, "LayerNormalization"), 1);
        assert_int_equal(nodes_of(p, "MatMul"), 2);
        assert_int_equal(nodes_of(p, "Gelu") + nodes_of(p, "Add"), 0);
        /* for the logits, which the caller reads */
        assert_int_equal(nodes_of(p, "Convert"), i >= PLAN_BFLOAT16);
        /* The library's GELU is not accurate enough for float32. */
        assert_int_equal(products(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), i != PLAN_FLOAT32);
        assert_int_equal(products(CUBLASLT_EPILOGUE_DGELU), i != PLAN_FLOAT32);
        assert_int_equal(sums_beside_products(), 3);
        plan_free(p);
        graph_free(g);
    }
}

static void mlp_with_relu_saves_one_bit_per_element(void **state)
{
    struct graph *g;
    struct plan *p = compare(relu_layers(), PLAN_FLOAT32, 1e-4, &g);

    (void)state;
    assert_int_equal(nodes_of(p, "Mlp"), 1);
    assert_int_equal(nodes_of(p, "Gemm") + nodes_of(p, "Relu"), 0);
    assert_int_equal(products(CUBLASLT_EPILOGUE_RELU_AUX_BIAS), 1);
    assert_int_equal(products(CUBLASLT_EPILOGUE_DRELU), 1);
    assert_int_equal(sums_beside_products(), 2);
    plan_free(p);
    graph_free(g);
}

/* The library only has the tanh approximation. */
static void exact_gelu_on_gpu_runs_as_separate_kernel(void **state)
{
    struct graph *g;
    struct plan *p = compare(block(false), PLAN_FLOAT32, 1e-4, &g);

    (void)state;
    assert_int_equal(nodes_of(p, "Mlp"), 0);
    assert_int_equal(nodes_of(p, "Gelu"), 1);
    assert_int_equal(products(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), 0);
    (void)sums_beside_products();
    plan_free(p);
    graph_free(g);
}

static void fusion_without_library_kernels_uses_own_kernels(void **state)
{
    struct graph *g;
    struct plan *p;

    (void)state;
    assert_int_equal(setenv("EMULATED_CUBLASLT", "plain@0", 1), 0);
    p = compare(block(true), PLAN_BFLOAT16, 0.03, &g);
    assert_int_equal(unsetenv("EMULATED_CUBLASLT"), 0);
    assert_int_equal(nodes_of(p, "Mlp"), 1);
    assert_int_equal(products(CUBLASLT_EPILOGUE_GELU_AUX_BIAS) + products(CUBLASLT_EPILOGUE_DGELU),
                     0);
    assert_int_equal(sums_beside_products(), 0);
    plan_free(p);
    graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transformer_block_on_gpu_fuses_functions_and_sums_into_products),
        cmocka_unit_test(mlp_with_relu_saves_one_bit_per_element),
        cmocka_unit_test(exact_gelu_on_gpu_runs_as_separate_kernel),
        cmocka_unit_test(fusion_without_library_kernels_uses_own_kernels),
    };

    return cmocka_run_group_tests_name("cuda/fusion", tests, open_gpu, close_gpu);
}
