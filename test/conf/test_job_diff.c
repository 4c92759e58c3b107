/* test_job_diff.c - tests the comparison of two jobs: it reports each key that differs once, with
 * both values and whether the key may change while the job runs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "conf/job.h"
#include "conf/job_diff.h"
#include "conf/job_rows.h"

static void add_line(void *arg, const struct conf_change *change)
{
    struct buf *out = arg;

    buf_printf(out, "%s %s: %s -> %s\n", change->is_live ? "live" : "fixed", change->pointer,
               change->from != NULL ? change->from : "a list",
               change->to != NULL ? change->to : "a list");
}

/* Returns a line for each difference. The caller frees it. */
static char *differences(const struct job_patch was[JOB_MAX_PATCHES],
                         const struct job_patch now[JOB_MAX_PATCHES])
{
    struct conf *a = job_patched(was), *b = job_patched(now);
    struct buf out = { 0 };
    struct err err = { 0 };

    buf_str(&out, "");
    assert_int_equal(conf_diff(a, b, add_line, &out, &err), 0);
    conf_free(a);
    conf_free(b);
    return buf_detach(&out);
}

/* clang-format off */
static void changed_key_is_reported_with_both_values(void **state)
{
    static const struct {
        struct job_patch was[JOB_MAX_PATCHES], now[JOB_MAX_PATCHES];
        const char *expected;
    } rows[] = {
        { { { NULL, NULL } }, { { NULL, NULL } }, "" },
        { P1("/train/clip_norm", "-0"), P1("/train/clip_norm", "0"), "" },
        { P1("/train/seed", "0"), { { NULL, NULL } }, "" }, /* the default, given */
        { P1("/model/inputs", "{'extra':'y','image':'x'}"), { { NULL, NULL } }, "" },
        { P1("/checkpoint", "{'directory':'c','every_steps':3}"),
          P1("/checkpoint", "{'directory':'c','every_seconds':1.5,'max_to_keep':1}"),
          "live /checkpoint/every_steps: 3 -> 0\n"
          "live /checkpoint/every_seconds: 0 -> 1.5\n"
          "live /checkpoint/max_to_keep: 5 -> 1\n" },
        { P1("/checkpoint", "{'directory':'c'}"), P1("/checkpoint", "{'directory':'d'}"),
          "fixed /checkpoint/directory: \"/jobs/c\" -> \"/jobs/d\"\n" },
        { P2("/train/log_every_steps", "3", "/log", "{'level':'warn'}"), P1("/summary", "{'directory':'s'}"),
          "live /train/log_every_steps: 3 -> 10\n"
          "live /summary/directory: null -> \"/jobs/s\"\n"
          "live /log/level: \"warn\" -> \"info\"\n" },
        { P2("/train/steps", NULL, "/train/epochs", "2"), { { NULL, NULL } },
          "fixed /train/epochs: 2 -> nothing\n"
          "fixed /train/steps: nothing -> 100\n" },
        { P1("/optimizer/type", "'momentum'"), { { NULL, NULL } },
          "fixed /optimizer/type: \"momentum\" -> \"sgd\"\n"
          "fixed /optimizer/momentum: 0.9 -> nothing\n"
          "fixed /optimizer/nesterov: false -> nothing\n" },
        { P1("/data/features/image/scale", "2"), { { NULL, NULL } },
          "fixed /data/features: a list -> a list\n" },
        { P1("/model/frozen", "['a']"), P1("/model/frozen", "['a', 'b']"),
          "fixed /model/frozen: a list -> a list\n" },
        { P1("/parameter_server", "{'replicas':3}"), P1("/parameter_server", "{'tables':['a']}"),
          "fixed /parameter_server/tables: a list -> a list\n"
          "fixed /parameter_server/min_shard_bytes: 262144 -> nothing\n"
          "fixed /parameter_server/replicas: 3 -> 2\n" },
        { P1("/parameter_server", "{}"), { { NULL, NULL } }, "fixed /parameter_server: {} -> nothing\n" },
        { { { NULL, NULL } }, P1("/parameter_server", "{'tables':'none'}"), "fixed /parameter_server: nothing -> {}\n" },
        { P1("/name", "'n'"), { { NULL, NULL } }, "fixed /name: \"n\" -> \"job\"\n" },
        { P1("/elastic", "{'min_world':2}"), P1("/train/grace_seconds", "3"),
          "fixed /train/grace_seconds: 8 -> 3\n"
          "fixed /elastic/min_world: 2 -> 0\n" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char *found = differences(rows[i].was, rows[i].now);

        assert_string_equal(found, rows[i].expected);
        free(found);
    }
}
/* clang-format on */

/* Compares each job of job_allowed with itself. */
static void allowed_job_has_no_difference_from_itself(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(job_allowed); i++) {
        char *found = differences(job_allowed[i], job_allowed[i]);

        assert_string_equal(found, "");
        free(found);
    }
}

/* A key that determines the result must not change while the job runs. */
static void live_key_is_not_part_of_the_digest(void **state)
{
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    struct conf *base = job_patched(none);
    size_t n_live = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(job_allowed); i++) {
        struct conf *c = job_patched(job_allowed[i]);
        char *found = differences(none, job_allowed[i]);

        if (strcmp(c->digest, base->digest) != 0)
            assert_non_null(strstr(found, "fixed "));
        n_live += strstr(found, "live ") != NULL;
        free(found);
        conf_free(c);
    }
    assert_true(n_live >= 3);
    conf_free(base);
}

static void diff_out_of_memory_is_refused(void **state)
{
    const struct job_patch none[JOB_MAX_PATCHES] = { { NULL, NULL } };
    struct conf *c = job_patched(none);
    struct buf out = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(fault_arm("mem@1", NULL), 0);
    assert_int_equal(conf_diff(c, c, add_line, &out, &err), ERR_NOMEM);
    assert_true(fault_fired());
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_null(out.data);
    conf_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed_key_is_reported_with_both_values),
        cmocka_unit_test(allowed_job_has_no_difference_from_itself),
        cmocka_unit_test(live_key_is_not_part_of_the_digest),
        cmocka_unit_test(diff_out_of_memory_is_refused),
    };

    return cmocka_run_group_tests_name("conf/job_diff", tests, NULL, NULL);
}
