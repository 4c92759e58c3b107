/* plan_verify() accepts the plans of plan_new(), and refuses a plan that is corrupted in one
 * place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "graph/plan_priv.h"
#include "harness/model.h"
#include "harness/net.h"

/* x [n, 4] -> h = x w, r = Sigmoid(h), s = r * r, t = h + s, q = Neg(t), v = Reshape(q),
 * logits = v u. Mul writes two gradients of one value, h has two readers, Reshape is a view, Neg
 * works in place, and the weight `aside` has no path to the loss. */
static struct model *small(void)
{
    static const int64_t rows[2] = { -1, 8 };
    static const float ones[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, zeros[8] = { 0 };
    struct model *m = model_new(17);
    struct shape c = shape_of(1, (int64_t)8);

    model_input(m, "x", TENSOR_F32, shape_of(2, (int64_t)-1, (int64_t)4));
    model_weights(m, "w", shape_of(2, (int64_t)4, (int64_t)8), 1);
    model_weights(m, "u", shape_of(2, (int64_t)8, (int64_t)3), 2);
    model_weights(m, "aside", shape_of(2, (int64_t)8, (int64_t)2), 3);
    model_floats(m, "scale", c, ones);
    model_floats(m, "bias", c, zeros);
    model_floats(m, "mean", c, zeros);
    model_floats(m, "var", c, ones);
    model_int64s(m, "rows", rows, 2);
    model_node(m, "MatMul", "x w", "h");
    model_node(m, "Sigmoid", "h", "r");
    model_node(m, "Mul", "r r", "s");
    model_node(m, "Add", "h s", "t");
    model_node(m, "BatchNormalization", "t scale bias mean var", "b b1 b2");
    model_int(m, "training_mode", 1);
    model_node(m, "MatMul", "b aside", "other");
    model_node(m, "Neg", "t", "q");
    model_node(m, "Reshape", "q rows", "v");
    model_node(m, "MatMul", "v u", "logits");
    model_output(m, "logits");
    model_output(m, "other");
    return m;
}

/* ---- parts of a plan ---- */

static uint32_t value_of(const struct plan *p, const char *name)
{
    for (uint32_t i = 0; i < p->values.n; i++)
        if (strcmp(p->values.at[i].name, name) == 0)
            return i;
    fail_msg("no value '%s'", name);
    return 0;
}

static uint32_t node_of(const struct plan *p, const char *op)
{
    for (uint32_t i = 0; i < p->nodes.n; i++)
        if (strcmp(p->nodes.at[i].def->name, op) == 0)
            return i;
    fail_msg("no node of %s", op);
    return 0;
}

/* The call of a node; is_sum: the call that adds its temporary gradient. */
static size_t call_of(const struct plan *p, bool backward, const char *op, bool is_sum)
{
    uint32_t node = node_of(p, op);
    size_t n = backward ? p->calls.backward.n : p->calls.forward.n;

    for (size_t i = 0; i < n; i++) {
        const struct plan_call *c = backward ? p->calls.backward.at[i] : p->calls.forward.at[i];

        if (c->node == node && (!backward || (c->call.din == NULL) == is_sum))
            return i;
    }
    fail_msg("no call of %s", op);
    return 0;
}

static struct plan_bind *bind_of(struct plan *p, enum plan_base base, const void *at)
{
    for (size_t i = 0; i < p->memory.binds[base].n; i++)
        if ((const void *)p->memory.binds[base].at[i].at == at)
            return &p->memory.binds[base].at[i];
    fail_msg("the address is not bound");
    return NULL;
}

static struct plan_bind *bind_of_value(struct plan *p, const char *name)
{
    return bind_of(p, PLAN_WORK, &p->values.at[value_of(p, name)].fwd->data);
}

/* Moves a block of work memory to another offset. */
static void move_block(struct plan *p, uint32_t block, size_t offset)
{
    for (size_t i = 0; i < p->memory.binds[PLAN_WORK].n; i++)
        if (p->memory.binds[PLAN_WORK].at[i].block == block)
            p->memory.binds[PLAN_WORK].at[i].offset = offset;
}

/* ---- one corruption each ---- */

static void shrink_work_memory(struct plan *p)
{
    p->memory.work_bytes -= 64;
}

static void misalign_value(struct plan *p)
{
    bind_of_value(p, "r")->offset += 4;
}

static void move_parameter(struct plan *p)
{
    bind_of(p, PLAN_ARENA, &p->values.at[value_of(p, "w")].fwd->data)->offset += 64;
}

static void move_gradient_beyond_the_end(struct plan *p)
{
    bind_of(p, PLAN_GRADS, &p->values.at[value_of(p, "w")].grad->data)->offset =
        p->g->arena.floats * sizeof(float);
}

static void bind_twice(struct plan *p)
{
    struct plan_bind again = *bind_of_value(p, "r");

    again.offset += 64;
    assert_true(VEC_PUSH(p->memory.binds[PLAN_WORK], again));
}

static void leave_value_unbound(struct plan *p)
{
    struct plan_bind *b = bind_of_value(p, "r");
    static void *unused;

    *b->at = NULL;
    b->at = &unused;
}

static void write_to_parameters(struct plan *p)
{
    struct plan_bind *b = bind_of_value(p, "r");
    struct plan_bind moved = { .at = b->at, .block = GRAPH_NONE };
    static void *unused;

    b->at = &unused;
    assert_true(VEC_PUSH(p->memory.binds[PLAN_ARENA], moved));
}

static void give_output_the_memory_of_an_input(struct plan *p)
{
    move_block(p, bind_of_value(p, "h")->block, bind_of_value(p, "x")->offset);
}

static void work_in_place_on_a_value_of_backward(struct plan *p)
{
    move_block(p, bind_of_value(p, "s")->block, bind_of_value(p, "r")->offset);
}

static void work_in_place_before_a_later_reader(struct plan *p)
{
    move_block(p, bind_of_value(p, "r")->block, bind_of_value(p, "h")->offset);
}

static void overlap_scratch_with_the_output(struct plan *p)
{
    struct plan_call *c = p->calls.forward.at[call_of(p, false, "Sigmoid", false)];
    struct plan_bind b = *bind_of_value(p, "r");

    p->nodes.at[c->node].scratch_bytes = 64;
    b.at = &c->call.scratch;
    assert_true(VEC_PUSH(p->memory.binds[PLAN_WORK], b));
}

static void swap_forward_calls(struct plan *p)
{
    size_t i = call_of(p, false, "Sigmoid", false);
    struct plan_call *c = p->calls.forward.at[i];

    p->calls.forward.at[i] = p->calls.forward.at[i + 1];
    p->calls.forward.at[i + 1] = c;
}

static void swap_backward_calls(struct plan *p)
{
    size_t i = call_of(p, true, "Sigmoid", false), k = call_of(p, true, "MatMul", false);
    struct plan_call *c = p->calls.backward.at[i];

    k = p->calls.backward.n - 1; /* of h = x w */
    p->calls.backward.at[i] = p->calls.backward.at[k];
    p->calls.backward.at[k] = c;
}

static void call_a_view_that_is_none(struct plan *p)
{
    p->nodes.at[node_of(p, "Sigmoid")].is_alias = true;
}

static void change_size(struct plan *p)
{
    p->values.at[value_of(p, "r")].fwd->shape.dim[1]--;
}

static void change_type(struct plan *p)
{
    p->values.at[value_of(p, "h")].grad->dtype = TENSOR_I32;
}

static void give_backward_a_value_that_it_does_not_list(struct plan *p)
{
    struct plan_call *c = p->calls.backward.at[call_of(p, true, "Add", false)];
    const struct tensor **in = (const struct tensor **)(uintptr_t)c->call.in;

    in[0] = p->values.at[value_of(p, "h")].fwd;
}

static void take_a_value_from_backward(struct plan *p)
{
    struct plan_call *c = p->calls.backward.at[call_of(p, true, "Mul", false)];
    const struct tensor **in = (const struct tensor **)(uintptr_t)c->call.in;

    in[0] = p->values.at[value_of(p, "r")].meta;
}

static void lose_output_gradient(struct plan *p)
{
    struct plan_call *c = p->calls.backward.at[call_of(p, true, "Sigmoid", false)];
    const struct tensor **dout = (const struct tensor **)(uintptr_t)c->call.dout;

    dout[0] = NULL;
}

static void overwrite_contribution(struct plan *p)
{
    for (size_t i = 0; i < p->calls.backward.n; i++)
        p->calls.backward.at[i]->call.din_add = 0;
}

static void add_first_contribution(struct plan *p)
{
    p->calls.backward.at[call_of(p, true, "Neg", false)]->call.din_add = OP_IN(0);
}

static void remove_sum(struct plan *p)
{
    size_t i = call_of(p, true, "Mul", true);

    memmove(&p->calls.backward.at[i], &p->calls.backward.at[i + 1],
            (p->calls.backward.n - i - 1) * sizeof(p->calls.backward.at[0]));
    p->calls.backward.n--;
}

static void overwrite_loss(struct plan *p)
{
    bind_of(p, PLAN_WORK, &p->values.at[p->loss.value].fwd->data)->offset =
        bind_of_value(p, "x")->offset;
}

static void report_too_early(struct plan *p)
{
    p->calls.ready.at[p->calls.ready.n - 1].call = 0;
}

static void report_with_a_gap(struct plan *p)
{
    p->calls.ready.at[0].n -= 16;
}

static void report_too_little(struct plan *p)
{
    p->calls.ready.at[p->calls.ready.n - 1].n -= 16;
}

static void leave_gradient_unwritten(struct plan *p)
{
    p->calls.zeros.n = 0;
}

/* clang-format off */
static const struct {
    const char *name;
    void (*corrupt)(struct plan *p);
    const char *place, *expected, *found; /* parts of the message */
} cases[] = {
    { "shrink_work_memory", shrink_work_memory, "work memory", "a range inside this memory", "only" },
    { "misalign_value", misalign_value, "forward of Sigmoid 'r': output 0, value 'r'", "a multiple of 64", "another" },
    { "move_parameter", move_parameter, "forward of MatMul 'h': input 1, value 'w'", "the place where", "parameters" },
    { "move_gradient_beyond_the_end", move_gradient_beyond_the_end, "backward of MatMul 'h': gradient of input 1, gradient 'w'", "inside this memory", "only" },
    { "bind_twice", bind_twice, "bound twice", "one place", "work memory at" },
    { "leave_value_unbound", leave_value_unbound, "forward of Sigmoid 'r': output 0", "memory of the plan", "no binding" },
    { "write_to_parameters", write_to_parameters, "forward of Sigmoid 'r': output 0", "calls may write", "only read" },
    { "give_output_the_memory_of_an_input", give_output_the_memory_of_an_input, "forward of MatMul 'h': output 0", "memory of its own", "the memory of input 0" },
    { "work_in_place_on_a_value_of_backward", work_in_place_on_a_value_of_backward, "forward of Mul 's': output 0", "memory of its own", "the memory of input 1" },
    { "work_in_place_before_a_later_reader", work_in_place_before_a_later_reader, "forward of Add 't': input 0, value 'h'", "its numbers", "value 'r', which forward of Sigmoid 'r' wrote there" },
    { "overlap_scratch_with_the_output", overlap_scratch_with_the_output, "forward of Sigmoid 'r'", "memory of its own", "scratch memory 0" },
    { "swap_forward_calls", swap_forward_calls, "forward of Mul 's': input 0, value 'r'", "its numbers", "no earlier call has written" },
    { "swap_backward_calls", swap_backward_calls, "gradient of 'h'", "all contributions before", "a later contribution" },
    { "call_a_view_that_is_none", call_a_view_that_is_none, "Sigmoid 'r': output 'r' is a view", "the bytes of its input", "other bytes" },
    { "change_size", change_size, "forward of Sigmoid 'r': output 0, 'r'", "128 bytes", "found 112 bytes" },
    { "change_type", change_type, "of input 0, 'h'", "bytes of float32", "bytes of int32" },
    { "give_backward_a_value_that_it_does_not_list", give_backward_a_value_that_it_does_not_list, "backward of Add 't': input 0, 'h'", "an address that faults", "found memory" },
    { "take_a_value_from_backward", take_a_value_from_backward, "backward of Mul 's': input 0, value 'r'", "an address", "none" },
    { "lose_output_gradient", lose_output_gradient, "backward of Sigmoid 'r': gradient of output 0, 'r'", "that later nodes wrote", "none" },
    { "overwrite_contribution", overwrite_contribution, "gradient of", "a contribution that is added", "overwrites" },
    { "add_first_contribution", add_first_contribution, "backward of Neg 'q': gradient of input 0, gradient 't'", "its numbers", "no earlier call has written" },
    { "remove_sum", remove_sum, "gradient of 'r'", "a sum of all contributions", "a temporary gradient that no call adds" },
    { "overwrite_loss", overwrite_loss, "input 0, value 'x'", "its numbers", "wrote there" },
    { "report_too_early", report_too_early, "ranges of final gradients: gradient of", "no write after", "a later write" },
    { "report_with_a_gap", report_with_a_gap, "ranges of final gradients: range 1", "expected it at", "found" },
    { "report_too_little", report_too_little, "ranges of final gradients", "in total", "found" },
    { "leave_gradient_unwritten", leave_gradient_unwritten, "gradient of 'aside'", "a write or zeros", "neither" },
};
/* clang-format on */

static void each_corruption_is_refused_with_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct model *m = small();
        struct net n = net_open_model(m, PLAN_TRAIN, 4);
        struct err err = { 0 };

        assert_int_equal(plan_verify(n.plan, &err), 0);
        cases[i].corrupt(n.plan);
        if (plan_verify(n.plan, &err) != ERR_CORRUPT || strstr(err.text, cases[i].place) == NULL ||
            strstr(err.text, cases[i].expected) == NULL || strstr(err.text, cases[i].found) == NULL)
            fail_msg("%s: '%s'", cases[i].name, err.text);
        net_close(&n);
        model_free(m);
    }
}

/* The caller reads the loss and its weight between forward and backward; the planner counts this
 * moment as the first call of backward, which may nevertheless overwrite them. */
static bool are_used_together(const struct plan *p, const struct plan_block *a,
                              const struct plan_block *b)
{
    uint32_t turn = (uint32_t)p->nodes.n;

    if ((a->last == turn && b->first == turn) || (b->last == turn && a->first == turn))
        return false;
    return a->bytes > 0 && b->bytes > 0 && a->first <= b->last && b->first <= a->last;
}

/* Moves each block onto each other block that is in use at the same time. */
static void blocks_in_use_at_the_same_time_may_not_overlap(void **state)
{
    static const char *const paths[] = { "mlp.onnx", "cnn_17.onnx", "tied.onnx", "residual.onnx",
                                         "dropout_17.onnx" };
    size_t tried = 0;

    (void)state;
    for (size_t f = 0; f < COUNT_OF(paths); f++) {
        struct net n = net_open(paths[f], PLAN_TRAIN, 4);
        struct plan *p = n.plan;
        struct err err = { 0 };

        for (uint32_t a = 0; a < p->memory.blocks.n; a++)
            for (uint32_t b = 0; b < p->memory.blocks.n; b++) {
                const struct plan_block *from = &p->memory.blocks.at[a],
                                        *to = &p->memory.blocks.at[b];

                if (a == b || !are_used_together(p, from, to) ||
                    to->offset + from->bytes > p->memory.work_bytes)
                    continue;
                move_block(p, a, to->offset);
                if (plan_verify(p, &err) != ERR_CORRUPT)
                    fail_msg("%s: block %u on block %u is accepted", paths[f], a, b);
                move_block(p, a, from->offset);
                tried++;
            }
        assert_int_equal(plan_verify(p, &err), 0);
        net_close(&n);
    }
    printf("%zu overlaps refused\n", tried);
    assert_true(tried > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_corruption_is_refused_with_its_place),
        cmocka_unit_test(blocks_in_use_at_the_same_time_may_not_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
