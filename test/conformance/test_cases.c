/* test_cases.c - runs the node tests of ONNX that cases.gz holds: the smallest case of each op,
 * opset and list of types (make_cases.py selects them); `make conformance` runs all node tests.
 * Also checks the gradients of ops that the import lowers to other ops. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "harness/onnx_case.h"

enum { CASES_MIN = 600 };

static void smallest_case_of_each_op_passes(void **state)
{
    struct onnx_archive *a = onnx_archive_open("test/conformance/cases.gz");
    int got, n = 0, failed = 0;
    struct onnx_case c;

    (void)state;
    assert_non_null(a);
    while ((got = onnx_archive_next(a, &c)) == 1) {
        char why[512];

        if (onnx_case_run(&c, why, sizeof(why)) != ONNX_PASS) {
            print_error("%s: %s\n", c.name, why);
            failed++;
        }
        n++;
        onnx_case_free(&c);
    }
    onnx_archive_close(a);
    assert_int_equal(got, 0);
    assert_int_equal(failed, 0);
    assert_in_range(n, CASES_MIN, 100 * CASES_MIN);
}

static void gradient_of_lowered_op_is_that_of_its_outputs(void **state)
{
    static const char *const ops[] = { "affine_grid", "center_crop_pad", "col2im", "compress",
                                       "l1normalization", "maxunpool", "mvn",
                                       "reversesequence", "stft", "upsample", "scatter",
                                       "resize_upsample", "top_k" };
    int checked[sizeof(ops) / sizeof(ops[0])] = { 0 };
    struct onnx_archive *a = onnx_archive_open("test/conformance/cases.gz");
    struct onnx_case c;
    size_t i;

    (void)state;
    assert_non_null(a);
    while (onnx_archive_next(a, &c) == 1) {
        for (i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
            char why[512];
            int n;

            if (strncmp(strchr(c.name, '/') + 6, ops[i], strlen(ops[i])) != 0 ||
                strstr(c.name, "expanded") != NULL)
                continue;
            n = onnx_case_check_gradients(&c, 1.0f / 64, why, sizeof(why));
            if (n < 0)
                fail_msg("%s: %s", c.name, why);
            checked[i] += n;
        }
        onnx_case_free(&c);
    }
    onnx_archive_close(a);
    for (i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (checked[i] == 0)
            fail_msg("no case of %s has a gradient to check", ops[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smallest_case_of_each_op_passes),
        cmocka_unit_test(gradient_of_lowered_op_is_that_of_its_outputs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
