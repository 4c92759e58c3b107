/* test_job_schema.c - tests that the committed schema equals the one of the table, and that an
 * independent validator accepts and refuses the same jobs as the reader. TRAINERD_UPDATE=1 rewrites
 * config/job.schema.json. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "conf/job.h"
#include "conf/job_rows.h"
#include "conf/job_schema.h"

static void committed_schema_equals_that_of_the_table(void **state)
{
    static const char path[] = "config/job.schema.json";
    struct buf made = { 0 }, committed = { 0 };
    struct err err = { 0 };

    (void)state;
    conf_schema(&made);
    assert_false(made.failed);
    if (getenv("TRAINERD_UPDATE") != NULL)
        assert_int_equal(fs_replace(path, made.data, made.len, &err), 0);
    if (fs_read(path, 1 << 20, &committed, &err) != 0)
        fail_msg("%s (tests run in the repository's root)", err.text);
    if (strcmp(committed.data, made.data) != 0)
        fail_msg("%s is out of date: run this test with TRAINERD_UPDATE=1", path);
    buf_fini(&made);
    buf_fini(&committed);
}

static void send(FILE *script, const char *verdict, const struct job_patch patches[JOB_MAX_PATCHES])
{
    char *text = job_text(patches);

    fprintf(script, "%s %s\n", verdict, text);
    free(text);
}

/* check_schema.py reads lines "accept JSON" and "refuse JSON", and also checks the examples of
 * config/. */
static void validator_accepts_the_same_jobs_as_the_reader(void **state)
{
    FILE *script = popen("/usr/bin/python3 test/conf/check_schema.py", "w");

    (void)state;
    assert_non_null(script);
    for (size_t i = 0; i < COUNT_OF(job_refusals); i++)
        send(script, "refuse", job_refusals[i].patches);
    for (size_t i = 0; i < COUNT_OF(job_contradictions); i++)
        send(script, "accept", job_contradictions[i].patches);
    for (size_t i = 0; i < COUNT_OF(job_allowed); i++)
        send(script, "accept", job_allowed[i]);
    if (pclose(script) != 0)
        fail_msg("test/conf/check_schema.py did not pass; its reasons stand above");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_schema_equals_that_of_the_table),
        cmocka_unit_test(validator_accepts_the_same_jobs_as_the_reader),
    };

    return cmocka_run_group_tests_name("conf/job_schema", tests, NULL, NULL);
}
