/* Plans: memory is shared without conflicts, gradients are final when they are reported, and
 * execution allocates no memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "harness/allocations.h"
#include "harness/model.h"
#include "harness/net.h"

static void execution_allocates_no_memory(void **state)
{
    static const char *const paths[] = { "cnn_17.onnx", "residual.onnx", "dropout_17.onnx" };
    uint64_t before = allocations();

    (void)state;
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct net n = net_open(paths[i], PLAN_TRAIN, 4);

        if (ALLOCATIONS_COUNT)
            assert_true(allocations() > before); /* the counter counts */
        net_fill(&n, 0);
        (void)net_forward(&n); /* the library may initialize once */
        net_backward(&n);
        before = allocations();
        (void)net_forward(&n);
        net_backward(&n);
        plan_bind(n.plan, n.params, n.work);
        assert_int_equal(allocations(), before);
        net_close(&n);
    }
}

static bool stops_at(void *arg)
{
    uint32_t *left = arg;

    return (*left)-- == 0;
}

static void run_can_stop_between_any_calls_and_be_repeated(void **state)
{
    struct net n = net_open("cnn_17.onnx", PLAN_TRAIN, 4);
    uint32_t calls = plan_calls_count(n.plan), left;
    float *grads = malloc(n.arena_bytes);

    (void)state;
    assert_non_null(grads);
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    memcpy(grads, n.grads, n.arena_bytes);
    n.run.stops = stops_at;
    n.run.stops_arg = &left;
    for (uint32_t at = 0; at <= calls; at++) {
        struct err err;
        int rc;

        left = at;
        rc = plan_forward(n.plan, &n.run, &err);
        if (rc == 0)
            rc = plan_backward(n.plan, &n.run, n.grads, NULL, NULL, &err);
        assert_int_equal(rc, at < calls ? ERR_CANCELED : 0);
    }
    assert_memory_equal(grads, n.grads, n.arena_bytes);
    free(grads);
    net_close(&n);
}

/* ---- memory ---- */

static const char *const all_models[] = { "mlp.onnx",       "cnn_11.onnx",   "cnn_17.onnx",
                                          "tied.onnx",      "residual.onnx", "identity.onnx",
                                          "dropout_17.onnx" };

static bool overlap(size_t a, size_t a_end, size_t b, size_t b_end)
{
    return a < b_end && b < a_end;
}

static void concurrent_blocks_do_not_overlap_and_waste_little(void **state)
{
    size_t m, i, k;

    (void)state;
    for (m = 0; m < sizeof(all_models) / sizeof(all_models[0]); m++) {
        struct net n = net_open(all_models[m], PLAN_TRAIN, 8);
        const struct plan *p = n.plan;
        size_t most = 0;
        uint32_t time;

        for (i = 0; i < p->memory.blocks.n; i++) {
            const struct plan_block *a = &p->memory.blocks.at[i];

            assert_int_equal(a->offset % 64, 0);
            assert_true(a->offset + a->bytes <= plan_work_bytes(p));
            for (k = 0; k < i; k++) {
                const struct plan_block *b = &p->memory.blocks.at[k];

                assert_false(
                    overlap(a->first, (size_t)a->last + 1, b->first, (size_t)b->last + 1) &&
                    overlap(a->offset, a->offset + a->bytes, b->offset, b->offset + b->bytes));
            }
        }
        for (time = 0; time <= 2 * p->nodes.n; time++) {
            size_t bytes = 0;

            for (i = 0; i < p->memory.blocks.n; i++)
                if (p->memory.blocks.at[i].first <= time && time <= p->memory.blocks.at[i].last)
                    bytes += p->memory.blocks.at[i].bytes;
            most = bytes > most ? bytes : most;
        }
        assert_true(plan_work_bytes(p) <= most + most / 4);
        net_close(&n);
    }
}

/* Writes NaN to all memory that no block uses at this time, or that is about to be written. */
static void poison(struct net *n, uint32_t time)
{
    const struct plan *p = n->plan;
    uint8_t *held = calloc(1, p->memory.work_bytes / 64 + 1);
    size_t i, k;

    assert_non_null(held);
    for (i = 0; i < p->memory.blocks.n; i++) {
        const struct plan_block *b = &p->memory.blocks.at[i];

        if (b->first < time && time <= b->last)
            memset(held + b->offset / 64, 1, b->bytes / 64);
    }
    for (k = 0; k < p->memory.work_bytes / 64; k++)
        if (!held[k])
            memset((char *)n->work + k * 64, 0xFF, 64);
    free(held);
}

static void run_poisoned(struct net *n, struct plan_call *call, uint32_t *time)
{
    struct err err = { 0 };

    if (call->time != *time && call->time > 0)
        poison(n, call->time);
    *time = call->time;
    call->call.run = &n->run;
    assert_int_equal(call->kernel(&call->call, &err), 0);
}

static void kernels_read_no_released_memory(void **state)
{
    size_t m, i;

    (void)state;
    for (m = 0; m < sizeof(all_models) / sizeof(all_models[0]); m++) {
        struct net clean = net_open(all_models[m], PLAN_TRAIN, 4);
        struct net n = net_open(all_models[m], PLAN_TRAIN, 4);
        uint32_t time = 0, p;

        net_fill(&clean, 0);
        (void)net_forward(&clean);
        net_backward(&clean);
        net_fill(&n, 0);
        for (i = 0; i < n.plan->memory.binds[PLAN_GRADS].n; i++)
            *n.plan->memory.binds[PLAN_GRADS].at[i].at =
                (char *)n.grads + n.plan->memory.binds[PLAN_GRADS].at[i].offset;
        for (i = 0; i < n.plan->calls.forward.n; i++)
            run_poisoned(&n, n.plan->calls.forward.at[i], &time);
        for (i = 0; i < n.plan->calls.backward.n; i++)
            run_poisoned(&n, n.plan->calls.backward.at[i], &time);
        for (p = 0; p < n.n_params; p++)
            assert_memory_equal(n.grads + n.params_of[p].offset,
                                clean.grads + n.params_of[p].offset,
                                n.params_of[p].elements * sizeof(float));
        net_close(&clean);
        net_close(&n);
    }
}

static void call_writes_no_two_gradients_to_one_buffer(void **state)
{
    size_t m, i;
    uint32_t k, j;

    (void)state;
    for (m = 0; m < sizeof(all_models) / sizeof(all_models[0]); m++) {
        struct net n = net_open(all_models[m], PLAN_TRAIN, 4);

        net_fill(&n, 0);
        (void)net_forward(&n);
        net_backward(&n); /* binds the gradients */
        for (i = 0; i < n.plan->calls.backward.n; i++) {
            const struct op_call *c = &n.plan->calls.backward.at[i]->call;

            for (k = 0; c->din != NULL && k < c->n_in; k++)
                for (j = 0; j < k; j++)
                    assert_true(c->din[j] == NULL || c->din[k] == NULL ||
                                c->din[j]->data != c->din[k]->data);
        }
        net_close(&n);
    }
}

static void plan_runs_in_any_memory_and_writes_no_gaps(void **state)
{
    struct net n = net_open("cnn_17.onnx", PLAN_TRAIN, 4);
    float *first = n.grads, *params = aligned_alloc(64, (n.arena_bytes + 63) / 64 * 64);
    float *grads = aligned_alloc(64, (n.arena_bytes + 63) / 64 * 64), loss;
    void *work = aligned_alloc(64, plan_work_bytes(n.plan));
    uint32_t p;

    (void)state;
    assert_true(params != NULL && grads != NULL && work != NULL);
    net_fill(&n, 0);
    loss = net_forward(&n);
    net_backward(&n);
    assert_true(isnan(n.grads[net_param(&n, "fc.bias")->offset + 3])); /* after 3 elements */
    memcpy(params, n.params, n.arena_bytes);
    memset(n.params, 0xFF, n.arena_bytes);
    memset(n.work, 0xFF, plan_work_bytes(n.plan));
    plan_bind(n.plan, params, work);
    n.grads = grads;
    net_fill(&n, 0);
    assert_true(net_forward(&n) == loss);
    net_backward(&n);
    for (p = 0; p < n.n_params; p++)
        assert_memory_equal(first + n.params_of[p].offset, grads + n.params_of[p].offset,
                            n.params_of[p].elements * sizeof(float));
    free(first);
    free(params);
    free(work);
    net_close(&n);
}

/* ---- ready ---- */

struct watcher {
    struct net *n;
    size_t next;
    float *seen; /* copy of the ranges when they were reported as final */
};

static void watch(void *arg, size_t offset, size_t n)
{
    struct watcher *w = arg;

    assert_int_equal(offset, w->next);
    assert_true(n > 0);
    memcpy(w->seen + offset, w->n->grads + offset, n * sizeof(float));
    w->next = offset + n;
}

static void reported_ranges_are_final_and_cover_all_parameters(void **state)
{
    size_t m;

    (void)state;
    for (m = 0; m < sizeof(all_models) / sizeof(all_models[0]); m++) {
        struct net n = net_open(all_models[m], PLAN_TRAIN, 4);
        struct watcher w = { .n = &n, .seen = malloc(n.arena_bytes) };
        struct err err = { 0 };

        assert_non_null(w.seen);
        net_fill(&n, 0);
        (void)net_forward(&n);
        memset(n.grads, 0xFF, n.arena_bytes);
        assert_int_equal(plan_backward(n.plan, &n.run, n.grads, watch, &w, &err), 0);
        assert_int_equal(w.next, graph_trained_floats(n.graph));
        assert_memory_equal(w.seen, n.grads, w.next * sizeof(float));
        assert_true(n.plan->calls.ready.n > 1); /* not all at the end */
        free(w.seen);
        net_close(&n);
    }
}

/* ---- parts of a graph ---- */

/* Two heads: only "logits" leads to the loss. The other has a normalization whose statistics are
 * updated nevertheless, and a weight whose gradient is zero. */
static struct model *two_heads(void)
{
    static const float ones[5] = { 1, 1, 1, 1, 1 }, zeros[5] = { 0 };
    struct shape c = shape_of(1, (int64_t)5);
    struct model *m = model_new(17);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)5));
    model_weights(m, "w", shape_of(2, (int64_t)5, (int64_t)3), 1);
    model_weights(m, "aside", shape_of(2, (int64_t)5, (int64_t)2), 2);
    model_floats(m, "scale", c, ones);
    model_floats(m, "bias", c, zeros);
    model_floats(m, "mean", c, zeros);
    model_floats(m, "var", c, ones);
    model_node(m, "BatchNormalization", "x scale bias mean var", "n n1 n2");
    model_int(m, "training_mode", 1);
    model_node(m, "MatMul", "n aside", "other");
    model_node(m, "MatMul", "x w", "logits");
    model_output(m, "logits");
    model_output(m, "other");
    return m;
}

static void parameter_without_path_to_the_loss_has_gradient_zero(void **state)
{
    struct model *m = two_heads();
    struct net n = net_open_model(m, PLAN_TRAIN, 4);
    const float *aside = n.grads + net_param(&n, "aside")->offset;
    const float *mean = n.grads + net_param(&n, "mean")->offset, *x;
    struct buf text = { 0 };
    float want = 0;
    size_t i;

    (void)state;
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    for (i = 0; i < 10; i++)
        assert_float_equal(aside[i], 0, 0);
    assert_true(n.grads[net_param(&n, "w")->offset] != 0);
    x = plan_input(n.plan, 0)->data;
    for (i = 0; i < 4; i++)
        want += x[5 * i + 1] / 4;
    assert_float_equal(mean[1], want, 1e-6);
    plan_print(n.plan, &text);
    assert_non_null(strstr(text.data, "the loss does not depend on 'aside'"));
    assert_null(strstr(text.data, "-> other")); /* pruned */
    buf_fini(&text);
    net_close(&n);
    model_free(m);
}

static void frozen_layers_run_forward_only(void **state)
{
    static const char *const frozen[] = { "conv*", "bn*" };
    const struct graph_opts opts = { .path = "test/graph/data/cnn_17.onnx",
                                     .frozen = frozen,
                                     .n_frozen = 2 };
    struct net whole = net_open("cnn_17.onnx", PLAN_TRAIN, 4), n;
    struct err err = { 0 };
    struct graph *g;

    (void)state;
    assert_int_equal(graph_import(&opts, &g, &err), 0);
    n = net_open_graph(g, PLAN_TRAIN, 4);
    assert_int_equal(n.n_params, 2);
    assert_int_equal(n.plan->calls.backward.n, 2); /* loss and fc */
    assert_true(plan_work_bytes(n.plan) < plan_work_bytes(whole.plan));
    net_fill(&n, 0);
    net_fill(&whole, 0);
    assert_true(net_forward(&n) == net_forward(&whole));
    net_backward(&n);
    net_backward(&whole);
    assert_memory_equal(n.grads + net_param(&n, "fc.weight")->offset,
                        whole.grads + net_param(&whole, "fc.weight")->offset, 18 * sizeof(float));
    net_close(&n);
    net_close(&whole);
}

static void constants_are_folded_and_views_have_no_call(void **state)
{
    struct net n = net_open("residual.onnx", PLAN_TRAIN, 4);
    struct buf text = { 0 };
    size_t i, views = 0, in_place = 0;

    (void)state;
    plan_print(n.plan, &text);
    assert_null(strstr(text.data, "two"));
    assert_non_null(strstr(text.data, "factor []"));
    for (i = 0; i < n.plan->nodes.n; i++) {
        views += n.plan->nodes.at[i].is_alias;
        in_place += n.plan->nodes.at[i].in_place;
    }
    assert_int_equal(views, 2); /* scale in the other layout, flatten */
    assert_true(in_place >= 3);
    assert_int_equal(n.plan->calls.forward.n, n.plan->nodes.n - views);
    buf_fini(&text);
    net_close(&n);
}

static void single_channel_needs_no_reorder(void **state)
{
    struct model *m = model_new(17);
    struct net n;
    size_t i;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(4, (int64_t)-1, (int64_t)1, (int64_t)4, (int64_t)4));
    model_weights(m, "k", shape_of(4, (int64_t)3, (int64_t)1, (int64_t)4, (int64_t)4), 1);
    model_node(m, "Conv", "x k", "c"); /* one pixel remains */
    model_node(m, "Flatten", "c", "logits");
    model_output(m, "logits");
    n = net_open_model(m, PLAN_TRAIN, 2);
    assert_int_equal(n.plan->calls.forward.n, 2); /* Conv and loss */
    for (i = 0; i < n.plan->nodes.n; i++)
        assert_true(n.plan->nodes.at[i].is_alias == (i == 0 || i == 2 || i == 3));
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    net_check_gradients(&n, 5, 2e-3f, 2e-3f);
    net_close(&n);
    model_free(m);
}

static void kept_tensors_are_plain_and_outlive_the_calls(void **state)
{
    static const float identity[4] = { 0, 1, 1, 0 }; /* swaps two channels */
    static const char *const keep[] = { "y", "x" };
    struct plan_feed feed = { .name = "x",
                              .dtype = TENSOR_F32,
                              .shape = shape_of(3, (int64_t)2, (int64_t)2, (int64_t)3) };
    struct plan_opts opts = {
        .purpose = PLAN_EVAL, .batch = 2, .feeds = &feed, .n_feeds = 1, .keep = keep, .n_keep = 2
    };
    struct model *m = model_new(17);
    struct op_run run = { .loss_scale = 1 };
    struct err err = { 0 };
    struct graph *g;
    struct plan *p;
    const float *y;
    float *x;
    void *work;
    size_t i;

    (void)state;
    model_input(m, "x", TENSOR_F32, shape_of(4, (int64_t)-1, (int64_t)2, (int64_t)2, (int64_t)3));
    model_floats(m, "k", shape_of(4, (int64_t)2, (int64_t)2, (int64_t)1, (int64_t)1), identity);
    model_node(m, "Conv", "x k", "y");
    model_node(m, "Relu", "y", "z");
    model_output(m, "z");
    g = net_import_model(m, NULL);
    assert_int_equal(plan_new(g, &opts, &p, &err), 0);
    work = aligned_alloc(64, plan_work_bytes(p));
    assert_non_null(work);
    plan_bind(p, (float *)(uintptr_t)graph_params(g, &(uint32_t){ 0 })->initial, work);
    x = plan_input(p, 0)->data;
    for (i = 0; i < 24; i++)
        x[i] = (float)i;
    assert_int_equal(plan_forward(p, &run, &err), 0);
    y = plan_tensor(p, "y")->data;
    assert_int_equal(plan_tensor(p, "y")->layout, TENSOR_PLAIN);
    assert_null(plan_tensor(p, "z"));
    for (i = 0; i < 24; i++)
        assert_float_equal(y[i], (float)(i / 12 * 12 + (i + 6) % 12), 0);
    free(work);
    plan_free(p);
    graph_free(g);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(execution_allocates_no_memory),
        cmocka_unit_test(run_can_stop_between_any_calls_and_be_repeated),
        cmocka_unit_test(concurrent_blocks_do_not_overlap_and_waste_little),
        cmocka_unit_test(kernels_read_no_released_memory),
        cmocka_unit_test(call_writes_no_two_gradients_to_one_buffer),
        cmocka_unit_test(plan_runs_in_any_memory_and_writes_no_gaps),
        cmocka_unit_test(reported_ranges_are_final_and_cover_all_parameters),
        cmocka_unit_test(parameter_without_path_to_the_loss_has_gradient_zero),
        cmocka_unit_test(frozen_layers_run_forward_only),
        cmocka_unit_test(constants_are_folded_and_views_have_no_call),
        cmocka_unit_test(single_channel_needs_no_reorder),
        cmocka_unit_test(kept_tensors_are_plain_and_outlive_the_calls),
    };

    return cmocka_run_group_tests_name("graph/plan", tests, NULL, NULL);
}
