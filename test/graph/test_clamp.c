/* The gradient at the exact bounds of PyTorch's calls, whichever rows the exporter wrote. */
#include <stdlib.h>

#include "graph/kit.h"
#include "harness/net.h"

#define TARGET(target_, args_) \
    "%y : [num_users=1] = call_function[target=torch.ops.aten." target_ "](args = (" args_ "), kwargs = {})"
#define CALL(target_) TARGET(target_, "%h, 0")
#define CLAMP(bounds_) TARGET("clamp.Tensor", "%h, " bounds_)

enum { ZERO, HALF, WHOLE }; /* the part of the gradient that passes at a bound */

/* x [n, 4] -> h = x * 0 -> `op` with the bound 0, with this call in its metadata -> y -> logits. Every
 * element of h is at the bound. Returns the gradient of element 0 of the weight of h. */
static float gradient(const char *op, const char *inputs, const char *call, int64_t opset)
{
    static const float zeros[16] = { 0 };
    static Onnx__StringStringEntryProto entry = ONNX__STRING_STRING_ENTRY_PROTO__INIT;
    static Onnx__StringStringEntryProto *list[] = { &entry };
    struct model *m = begin(opset);
    Onnx__NodeProto *node;
    struct net n;
    float out;

    model_floats(m, "fc.weight", shape_of(2, (int64_t)4, (int64_t)4), zeros);
    model_floats(m, "bound", (struct shape){ 0 }, zeros);
    model_node(m, "MatMul", "x fc.weight", "h");
    model_node(m, op, inputs, "y");
    node = model_proto(m)->graph->node[1];
    model_node(m, "MatMul", "y w", "logits");
    model_output(m, "logits");
    entry.key = (char *)"pkg.torch.onnx.fx_node";
    entry.value = (char *)(uintptr_t)call;
    node->metadata_props = list;
    node->n_metadata_props = 1;
    n = net_open_model(m, PLAN_TRAIN, 1);
    node->metadata_props = NULL;
    node->n_metadata_props = 0;
    net_fill(&n, 0);
    (void)net_forward(&n);
    net_backward(&n);
    out = n.grads[net_param(&n, "fc.weight")->offset];
    net_close(&n);
    model_free(m);
    return out;
}

static void gradient_at_the_bound_is_that_of_the_call(void **state)
{
    static const struct {
        const char *op, *inputs, *call;
        int part;
    } cases[] = {
        { "Identity", "h", "", WHOLE },
        { "Max", "h bound", CALL("maximum.default"), HALF },
        { "Min", "h bound", CALL("minimum.default"), HALF },
        { "Max", "h bound", "", HALF },
        { "Max", "h bound", CALL("clamp.default"), ZERO },
        { "Min", "h bound", CALL("clamp.default"), ZERO },
        { "Max", "h bound", CALL("clamp_min.default"), ZERO },
        { "Min", "h bound", CALL("clamp_max.default"), ZERO },
        { "Max", "h bound", CLAMP("%clone"), HALF },
        { "Max", "h bound", TARGET("clamp_min.Tensor", "%h, %clone"), HALF },
        { "Max", "h bound", CLAMP("%scalar_tensor_default, %scalar_tensor_default_1"), ZERO },
        { "Max", "h bound", CLAMP("%scalar_tensor_default"), ZERO },
        { "Min", "h bound", CLAMP("None, %scalar_tensor_default_3"), ZERO },
        { "Min", "h bound", CLAMP("%scalar_tensor_default, %p_hi"), HALF },
        { "Clip", "h bound", CLAMP("%scalar_tensor_default"), ZERO },
        { "Clip", "h bound", "", ZERO },
        { "Clip", "h - bound", CALL("clamp.default"), ZERO },
        { "Clip", "h bound", CALL("hardtanh.default"), ZERO },
        { "Clip", "h bound", CLAMP("%clone, %clone_1"), HALF },
        { "Clip", "h - bound", CLAMP("%clone, %clone_1"), HALF },
        { "Min", "h bound", CALL("hardtanh.default"), ZERO },
        { "Max", "h bound", CALL("relu6.default"), ZERO },
    };
    static const int64_t opsets[] = { 13, 20 };
    size_t i, k;

    (void)state;
    for (k = 0; k < sizeof(opsets) / sizeof(opsets[0]); k++) {
        float whole = gradient("Identity", "h", "", opsets[k]);

        assert_true(whole != 0);
        for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            float got = gradient(cases[i].op, cases[i].inputs, cases[i].call, opsets[k]);

            if (got != whole * (float)cases[i].part / 2)
                fail_msg("case %zu, %s: %g of %g", i, cases[i].op, (double)got, (double)whole);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_at_the_bound_is_that_of_the_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
