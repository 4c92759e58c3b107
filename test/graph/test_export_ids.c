/* test_export_ids.c - the limit of ids in an exported model; test/e2e/test_dynamic_files.py runs such a model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/err.h"
#include "graph/export_ids.h"

static void table_above_the_limit_of_protobuf_is_refused_with_the_remedy(void **state)
{
    struct export_ids t = { "emb.weight", NULL, INT32_MAX / 18 };
    struct err err = { .text = "" };

    (void)state;
    assert_int_equal(export_ids_check(&t, &err), 0);
    t.n++;
    assert_int_equal(export_ids_check(&t, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'emb.weight' has 119304648 rows"));
    assert_non_null(strstr(err.text, "expected at most 119304647"));
    assert_non_null(strstr(err.text, "model.tables.emb.weight.max_rows"));
    assert_non_null(strstr(err.text, "`trainerctl convert`"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_above_the_limit_of_protobuf_is_refused_with_the_remedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
