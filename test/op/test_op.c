#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "op/dnn.h"
#include "op/op.h"
#include "op/op_priv.h"
#include "op/window.h"

/* ---- op definitions ---- */

static bool same_domain(const struct op_def *a, const struct op_def *b)
{
    return strcmp(a->domain != NULL ? a->domain : "", b->domain != NULL ? b->domain : "") == 0;
}

static void rows_of_one_name_have_disjoint_opsets(void **state)
{
    size_t n, i, k;
    const struct op_def *const *rows = op_all(&n);

    (void)state;
    assert_true(n > 0);
    for (i = 0; i < n; i++) {
        const struct op_def *a = rows[i];

        assert_true(a->since >= 1 && (a->until == 0 || a->until >= a->since));
        for (k = 0; k < i; k++) {
            const struct op_def *b = rows[k];

            if (strcmp(a->name, b->name) != 0 || !same_domain(a, b))
                continue;
            assert_true((a->until != 0 && a->until < b->since) ||
                        (b->until != 0 && b->until < a->since));
        }
    }
}

static void every_row_is_found_and_complete(void **state)
{
    size_t n, i;
    const struct op_def *const *rows = op_all(&n);

    (void)state;
    for (i = 0; i < n; i++) {
        const struct op_def *r = rows[i];

        assert_ptr_equal(op_find(r->domain, r->name, r->since), r);
        assert_ptr_equal(op_find(r->domain, r->name, r->until == 0 ? 1000 : r->until), r);
        assert_ptr_not_equal(op_find(r->domain, r->name, r->since - 1), r);
        assert_non_null(r->infer);
        assert_non_null(r->cpu.fwd);
        assert_true(r->n_in.min <= r->n_in.max && r->n_out.min <= r->n_out.max);
        assert_true(r->diff == 0 || r->cpu.bwd != NULL);
        assert_true(r->stat == 0 || (r->stat_momentum != NULL && (r->stat & r->diff) == 0));
        assert_true(r->cpu.plan != NULL || r->cpu.free_state == NULL);
    }
}

static void op_find_uses_domain_name_and_opset(void **state)
{
    const struct op_def *gemm = op_find(NULL, "Gemm", 13);

    (void)state;
    assert_non_null(gemm);
    assert_ptr_equal(op_find("", "Gemm", 13), gemm);
    assert_ptr_equal(op_find("ai.onnx", "Gemm", 20), gemm);
    assert_null(op_find("com.microsoft", "Gemm", 13));
    assert_null(op_find(NULL, "gemm", 13));
    assert_null(op_find(NULL, "Gemm", 6));
    assert_null(op_find(NULL, "Reorder", 1));
    assert_non_null(op_find("trainerd", "Reorder", 1));
    assert_int_equal(op_find(NULL, "BatchNormalization", 13)->until, 13);
    assert_int_equal(op_find(NULL, "BatchNormalization", 14)->since, 14);
}

/* ---- attributes, errors, inference ---- */

static const int64_t two_ints[] = { 7, 8 };
static const struct op_attr attrs[] = {
    { .name = "i", .type = OP_ATTR_INT, .i = -5 },
    { .name = "f", .type = OP_ATTR_FLOAT, .f = 0.5f },
    { .name = "s", .type = OP_ATTR_STRING, .s = "text" },
    { .name = "ints", .type = OP_ATTR_INTS, .n = 2, .ints = two_ints },
};

static struct op_infer infer_on(const struct tensor *const *in, uint32_t n_in, struct tensor *out)
{
    return (struct op_infer){ .def = op_find(NULL, "Gemm", 13), .node = "fc1", .opset = 13,
                              .attrs = attrs, .n_attrs = COUNT_OF(attrs), .n_in = n_in, .in = in,
                              .n_out = 1, .out = out };
}

static void attribute_is_value_or_default(void **state)
{
    struct op_infer f = infer_on(NULL, 0, NULL);
    struct err err = { 0 };
    const int64_t *ints;
    const char *s;
    int64_t i;
    size_t n;
    float x;

    (void)state;
    assert_int_equal(op_attr_i(&f, "i", 3, &i, &err), 0);
    assert_int_equal(i, -5);
    assert_int_equal(op_attr_i(&f, "none", 3, &i, &err), 0);
    assert_int_equal(i, 3);
    assert_int_equal(op_attr_f(&f, "f", 1, &x, &err), 0);
    assert_true(x == 0.5f);
    assert_int_equal(op_attr_f(&f, "none", 1, &x, &err), 0);
    assert_true(x == 1);
    assert_int_equal(op_attr_s(&f, "s", "d", &s, &err), 0);
    assert_string_equal(s, "text");
    assert_int_equal(op_attr_s(&f, "none", "d", &s, &err), 0);
    assert_string_equal(s, "d");
    assert_int_equal(op_attr_ints(&f, "ints", &ints, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(ints[1], 8);
    assert_int_equal(op_attr_ints(&f, "none", &ints, &n, &err), 0);
    assert_int_equal(n, 0);
    assert_null(ints);
}

static void attribute_of_wrong_type_is_rejected_with_node_and_types(void **state)
{
    struct op_infer f = infer_on(NULL, 0, NULL);
    struct err err = { 0 };
    const int64_t *ints;
    const char *s;
    int64_t i = 42;
    size_t n;
    float x;

    (void)state;
    assert_int_equal(op_attr_i(&f, "f", 3, &i, &err), ERR_INPUT);
    assert_string_equal(err.text, "Gemm 'fc1' (opset 13): attribute 'f' is FLOAT; expected INT");
    assert_int_equal(i, 42);
    assert_int_equal(op_attr_f(&f, "i", 3, &x, &err), ERR_INPUT);
    assert_int_equal(op_attr_s(&f, "i", "", &s, &err), ERR_INPUT);
    assert_int_equal(op_attr_ints(&f, "i", &ints, &n, &err), ERR_INPUT);
}

static void op_error_names_op_node_and_opset_and_keeps_code(void **state)
{
    struct op_infer f = infer_on(NULL, 0, NULL);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(op_error(&f, 0, &err, "%d is odd", 3), ERR_INPUT);
    assert_string_equal(err.text, "Gemm 'fc1' (opset 13): 3 is odd");
    assert_int_equal(op_error(&f, ERR_UNSUPPORTED, &err, "no"), ERR_UNSUPPORTED);
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    f.def = op_find("trainerd", "Reorder", 1);
    assert_int_equal(op_error(&f, 0, &err, "no"), ERR_INPUT);
    assert_string_equal(err.text, "Reorder 'fc1': no");
}

static void required_input_is_checked_for_type_and_rank(void **state)
{
    struct tensor a = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, (int64_t)2, (int64_t)3), NULL };
    struct tensor b = { TENSOR_I64, TENSOR_PLAIN, shape_of(1, (int64_t)3), NULL };
    const struct tensor *in[] = { &a, &b, NULL };
    struct op_infer f = infer_on(in, 3, NULL);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(op_check_input(&f, 0, TENSOR_F32, 2, &err), 0);
    assert_int_equal(op_check_input(&f, 0, TENSOR_F32, -1, &err), 0);
    assert_int_equal(op_check_input(&f, 0, TENSOR_F32, 3, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "input 0 has shape [2, 3]; expected 3 dimensions"));
    assert_int_equal(op_check_input(&f, 1, TENSOR_F32, -1, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "input 1 is int64; expected float32"));
    assert_int_equal(op_check_input(&f, 2, TENSOR_F32, -1, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "input 2 is missing"));
    assert_int_equal(op_check_input(&f, 3, TENSOR_F32, -1, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "input 3 is missing"));
}

static void common_inference_sets_shape_or_names_both_shapes(void **state)
{
    struct tensor a = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, (int64_t)2, (int64_t)3), NULL };
    struct tensor b = { TENSOR_F32, TENSOR_PLAIN, shape_of(2, (int64_t)2, (int64_t)1), NULL }, out;
    const struct tensor *in[] = { &a, &b };
    struct op_infer f = infer_on(in, 2, &out);
    struct err err = { 0 };

    (void)state;
    assert_int_equal(infer_same_shape(&f, &err), 0);
    assert_true(shape_equal(&out.shape, &a.shape) && out.dtype == TENSOR_F32);
    assert_int_equal(infer_broadcast(&f, &err), 0);
    assert_true(shape_equal(&out.shape, &a.shape) && out.dtype == TENSOR_F32);
    b.shape.dim[1] = 2;
    assert_int_equal(infer_broadcast(&f, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "[2, 3] and [2, 2] do not broadcast"));
    b.dtype = TENSOR_U8;
    assert_int_equal(infer_broadcast(&f, &err), ERR_INPUT);
}

/* ---- kernels ---- */

static void kernel_id_names_library_version_and_instruction_set(void **state)
{
    const char *id = op_kernel_id();

    (void)state;
    assert_true(strncmp(id, "onednn ", 7) == 0);
    assert_true(strlen(id) > 10 && strrchr(id, ' ') > id + 7);
    assert_null(strstr(id, "cpu_isa"));
    assert_ptr_equal(op_kernel_id(), id);
}

static void kernel_thread_rounds_to_nearest_and_keeps_denormals(void **state)
{
    volatile float tiny = 0x1p-140f, one = 1.0f;

    (void)state;
    assert_int_equal(fesetround(FE_UPWARD), 0);
#ifdef __SSE__
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); /* flush and ignore denormals */
    assert_true(tiny * one == 0.0f);
#endif
    op_thread_init();
    assert_int_equal(fegetround(), FE_TONEAREST);
    assert_true(tiny * one != 0.0f);
}

static void *multiply(void *arg)
{
    float *y = arg;
    struct err err = { 0 };
    struct dnn *d;
    float *a = y + 64 * 64, *b = a + 64 * 64;
    void *scratch;
    int rc, i;

    op_thread_init();
    if (dnn_matmul(&(struct dnn_matmul){ .batch = 1, .m = 64, .n = 64, .k = 64 }, &d, &err) < 0)
        return arg;
    scratch = aligned_alloc(64, dnn_scratch_bytes(d) + 64);
    for (rc = 0, i = 0; rc == 0 && i < 50; i++)
        rc = dnn_run(d, (void *[DNN_ARGS]){ a, b, y }, scratch, &err);
    free(scratch);
    dnn_free(d);
    return rc == 0 ? NULL : arg;
}

static void threads_with_own_kernels_are_independent(void **state)
{
    enum { THREADS = 3, FLOATS = 3 * 64 * 64 };
    pthread_t t[THREADS];
    float *mem[THREADS];
    size_t i, k;

    (void)state;
    for (i = 0; i < THREADS; i++) {
        mem[i] = aligned_alloc(64, FLOATS * sizeof(float));
        assert_non_null(mem[i]);
        for (k = 0; k < FLOATS; k++)
            mem[i][k] = sinf((float)k);
        assert_int_equal(pthread_create(&t[i], NULL, multiply, mem[i]), 0);
    }
    for (i = 0; i < THREADS; i++) {
        void *failed = NULL;

        assert_int_equal(pthread_join(t[i], &failed), 0);
        assert_null(failed);
        if (i > 0)
            assert_memory_equal(mem[i], mem[0], 64 * 64 * sizeof(float));
    }
    for (i = 0; i < THREADS; i++)
        free(mem[i]);
}

static void unsupported_kernel_is_rejected_and_output_unchanged(void **state)
{
    struct op_window w = {
        .spatial = 1, .in = { 8 }, .out = { 9 }, .kernel = { 3 }, .stride = { 1 }, .dilation = { 1 }
    }; /* out should be 6 */
    struct dnn_conv spec = { .window = &w, .n = 1, .c = 1, .o = 1, .group = 1 };
    struct dnn *d = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(dnn_conv_fwd(&spec, &d, &err), ERR_UNSUPPORTED);
    assert_null(d);
    assert_non_null(strstr(err.text, "convolution: onednn "));
    assert_int_equal(dnn_conv_bwd_w(&spec, &d, &err), ERR_UNSUPPORTED);
    assert_int_equal(dnn_conv_bwd_x(&spec, &d, &err), ERR_UNSUPPORTED);
    assert_null(d);
    dnn_free(NULL);
    assert_int_equal(dnn_scratch_bytes(NULL), 0);
}

/* ---- sums ---- */

static void expect_sums(size_t rows, size_t cols, float alpha, bool add)
{
    float *x = malloc((rows * cols + 1) * sizeof(*x)),
          *by_row = malloc((rows + 1) * sizeof(*by_row));
    float *by_col = malloc((cols + 1) * sizeof(*by_col));
    size_t i, j;

    for (i = 0; i < rows * cols; i++)
        x[i] = sinf((float)i * 1.7f) + 0.5f;
    for (i = 0; i <= rows; i++)
        by_row[i] = add ? 3.0f : NAN;
    for (j = 0; j <= cols; j++)
        by_col[j] = add ? 3.0f : NAN;
    op_sum_rows(x, rows, cols, alpha, by_col, add);
    op_sum_cols(x, rows, cols, alpha, by_row, add);
    for (i = 0; i < rows; i++) {
        double want = 0;

        for (j = 0; j < cols; j++)
            want += (double)x[i * cols + j];
        want = want * (double)alpha + (add ? 3 : 0);
        assert_true(fabs((double)by_row[i] - want) <= 1e-6 * (1 + fabs(want)));
    }
    for (j = 0; j < cols; j++) {
        double want = 0;

        for (i = 0; i < rows; i++)
            want += (double)x[i * cols + j];
        want = want * (double)alpha + (add ? 3 : 0);
        assert_true(fabs((double)by_col[j] - want) <= 1e-6 * (1 + fabs(want)));
    }
    assert_true(add ? by_row[rows] == 3.0f && by_col[cols] == 3.0f
                    : isnan(by_row[rows]) && isnan(by_col[cols])); /* unchanged after the end */
    free(x), free(by_row), free(by_col);
}

static void row_and_column_sums_of_odd_sizes_are_exact_to_rounding(void **state)
{
    static const size_t sizes[][2] = { { 1, 1 },    { 3, 5 },    { 17, 16 },   { 63, 129 },
                                       { 65, 128 }, { 200, 33 }, { 1, 10000 }, { 5000, 1 },
                                       { 0, 4 },    { 4, 0 } };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(sizes); i++) {
        expect_sums(sizes[i][0], sizes[i][1], 1.0f, false);
        expect_sums(sizes[i][0], sizes[i][1], -0.5f, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_one_name_have_disjoint_opsets),
        cmocka_unit_test(every_row_is_found_and_complete),
        cmocka_unit_test(op_find_uses_domain_name_and_opset),
        cmocka_unit_test(attribute_is_value_or_default),
        cmocka_unit_test(attribute_of_wrong_type_is_rejected_with_node_and_types),
        cmocka_unit_test(op_error_names_op_node_and_opset_and_keeps_code),
        cmocka_unit_test(required_input_is_checked_for_type_and_rank),
        cmocka_unit_test(common_inference_sets_shape_or_names_both_shapes),
        cmocka_unit_test(kernel_id_names_library_version_and_instruction_set),
        cmocka_unit_test(kernel_thread_rounds_to_nearest_and_keeps_denormals),
        cmocka_unit_test(threads_with_own_kernels_are_independent),
        cmocka_unit_test(unsupported_kernel_is_rejected_and_output_unchanged),
        cmocka_unit_test(row_and_column_sums_of_odd_sizes_are_exact_to_rounding),
    };

    return cmocka_run_group_tests_name("op/op", tests, NULL, NULL);
}
