#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"
#include "preflight/group.h"
#include "preflight/print.h"

static void outlier_is_marked_in_the_matrix_and_has_a_remedy(void **state)
{
    struct group g;
    struct preflight_findings f;
    struct buf out = { 0 };

    (void)state;
    group_init(&g, 3);
    for (uint32_t i = 0; i < 2; i++)
        g.entries[i][2].rtt_us = g.entries[2][i].rtt_us = 20000;
    assert_int_equal(judge(&g.table, &f, NULL), 0);
    print_matrix(&g.table, &f, &out);
    assert_non_null(strstr(out.data, "20ms 8G"));
    assert_non_null(strstr(out.data, "1 cpu  <-- outlier\n"));
    assert_null(strstr(strstr(out.data, "<-- outlier") + 1, "<-- outlier"));
    buf_reset(&out);
    print_verdict(&g.table, &f, &out);
    assert_non_null(strstr(out.data, "FAULT worker 2: latency: "));
    assert_non_null(strstr(out.data, "verdict: 1 fault among 3 tasks\n"));
    buf_reset(&out);
    print_advice(&g.table, &f, &out);
    for (int i = 1; i <= 4; i++) {
        static const char *const heads[] = { "1. environment: ", "2. needs: ", "3. strategy: ", "4. improve:" };

        assert_non_null(strstr(out.data, heads[i - 1]));
    }
    assert_non_null(strstr(out.data, "1) worker 2 (latency): "));
    free(f.at);
    buf_fini(&out);
}

static void json_has_every_task_and_finding(void **state)
{
    struct group g;
    struct preflight_findings f;
    struct buf out = { 0 };
    struct json *doc;
    const cJSON *root, *to;

    (void)state;
    group_init(&g, 4);
    g.rows[3].present = false;
    for (uint32_t i = 0; i < 3; i++)
        g.entries[i][3] = (struct preflight_entry){ .control = PREFLIGHT_UNRESOLVED };
    assert_int_equal(judge(&g.table, &f, NULL), 0);
    print_json(&g.table, &f, 1, &out);
    assert_int_equal(json_parse("printed", out.data, out.len, 0, &doc, NULL), 0);
    root = json_root(doc);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "tasks")), 4);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "findings")), 1);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(root, "good")));
    to = cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(root, "tasks"), 0), "to");
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(to, 0)));
    assert_string_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(to, 3), "control")->valuestring,
                        "unresolved");
    assert_int_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(to, 1), "mtu")->valueint, 1500);
    json_free(doc);
    free(f.at);
    buf_fini(&out);
}

/* 3 GB of state and 1 GB of gradients over a slowest path of 0.5 GB/s between 4 tasks. */
static void estimate_follows_from_the_slowest_path(void **state)
{
    struct group g;
    struct print_estimate e;

    (void)state;
    group_init(&g, 4);
    g.entries[3][1].rate = 500000000;
    assert_true(print_estimate(&g.table, &e));
    assert_true(fabs(e.open - 1.5) < 1e-9);
    assert_true(fabs(e.transfer - 6.0) < 1e-9);
    assert_true(fabs(e.reduce - 3.0) < 1e-9);
    for (uint32_t i = 0; i < 4; i++)
        g.rows[i].facts.state_bytes = 0;
    assert_false(print_estimate(&g.table, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outlier_is_marked_in_the_matrix_and_has_a_remedy),
        cmocka_unit_test(json_has_every_task_and_finding),
        cmocka_unit_test(estimate_follows_from_the_slowest_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
