/* test_evaluator_state.c - what an evaluator remembers, and which checkpoint it evaluates next. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/fs.h"
#include "daemon/evaluator_state.h"

static char folder[64];

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/test_evaluator_XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int finish(void **state)
{
    (void)state;
    fault_arm(NULL, NULL);
    return fs_remove_tree(folder, NULL);
}

static void assert_ok(int rc, const struct err *err)
{
    if (rc < 0)
        fail_msg("%s", err->text);
}

static struct evaluator_state read_as(const char *metric, bool higher, bool *is_other)
{
    struct evaluator_state s = { .higher_is_better = higher };
    struct err err;

    snprintf(s.metric, sizeof(s.metric), "%s", metric);
    assert_ok(evaluator_state_read(folder, &s, is_other, &err), &err);
    return s;
}

static void state_is_read_as_it_was_written(void **state)
{
    struct evaluator_state s = { .metric = "accuracy", .higher_is_better = true }, again;
    struct err err;
    bool is_other;

    (void)state;
    again = read_as("accuracy", true, &is_other); /* no file */
    assert_false(is_other);
    assert_int_equal(again.evaluated_step, 0);
    assert_false(again.has_best);
    evaluator_state_record(&s, "d1", 10, (double)NAN); /* without a best one */
    for (int i = 0; i < 2; i++) {
        assert_ok(evaluator_state_write(folder, &s, &err), &err);
        again = read_as("accuracy", true, &is_other);
        assert_false(is_other);
        assert_string_equal(again.job_digest, s.job_digest);
        assert_int_equal(again.evaluated_step, s.evaluated_step);
        assert_int_equal(again.has_best, s.has_best);
        assert_int_equal(again.best_step, s.best_step);
        assert_true(again.best == s.best);
        evaluator_state_record(&s, "d2", UINT64_C(9007199254740993), 1.0 / 3);
    }
}

static void state_of_another_metric_or_mode_is_not_used(void **state)
{
    struct evaluator_state s = { .metric = "accuracy", .higher_is_better = true }, again;
    struct err err;
    bool is_other;

    (void)state;
    evaluator_state_record(&s, "d", 10, 0.5);
    assert_ok(evaluator_state_write(folder, &s, &err), &err);
    again = read_as("loss", true, &is_other);
    assert_true(is_other);
    assert_int_equal(again.evaluated_step, 0);
    again = read_as("accuracy", false, &is_other);
    assert_true(is_other);
    assert_string_equal(again.metric, "accuracy");
}

static void damaged_state_is_refused_with_the_remedy(void **state)
{
    static const char *const texts[] = {
        "", "{", "[]", "{\"format\": 2}", "{\"format\": 1}",
        "{\"format\": 1, \"metric\": \"loss\", \"mode\": \"min\", \"job_digest\": \"d\", \"evaluated_step\": 1.5, \"best\": null}",
        "{\"format\": 1, \"metric\": \"loss\", \"mode\": \"min\", \"job_digest\": \"d\", \"evaluated_step\": 1, \"best\": {\"step\": 1}}",
        "{\"format\": 1, \"metric\": \"loss\", \"mode\": \"least\", \"job_digest\": \"d\", \"evaluated_step\": 1, \"best\": null}",
        "{\"format\": 1, \"metric\": \"loss\", \"mode\": \"min\", \"job_digest\": \"d\", \"evaluated_step\": 1}",
    };
    char path[128];

    (void)state;
    snprintf(path, sizeof(path), "%s/evaluator.json", folder);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct evaluator_state s = { .metric = "loss" };
        struct err err;
        bool is_other;

        assert_int_equal(fs_replace(path, texts[i], strlen(texts[i]), NULL), 0);
        assert_int_equal(evaluator_state_read(folder, &s, &is_other, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "remove the file"));
        assert_non_null(strstr(err.text, path));
    }
}

static void best_value_follows_the_mode_and_the_first_wins(void **state)
{
    struct evaluator_state low = { .metric = "loss" }, high = { .metric = "auc", .higher_is_better = true };

    (void)state;
    assert_false(evaluator_state_record(&low, "d", 1, (double)INFINITY));
    assert_true(evaluator_state_record(&low, "d", 2, 3));
    assert_false(evaluator_state_record(&low, "d", 3, 3));
    assert_false(evaluator_state_record(&low, "d", 4, 4));
    assert_true(evaluator_state_record(&low, "d", 5, -1));
    assert_false(evaluator_state_record(&low, "d", 6, -(double)INFINITY));
    assert_int_equal(low.best_step, 5);
    assert_int_equal(low.evaluated_step, 6);
    assert_true(evaluator_state_record(&high, "d", 1, 0.5));
    assert_false(evaluator_state_record(&high, "d", 2, 0.5));
    assert_true(evaluator_state_record(&high, "d", 3, 0.6));
    assert_int_equal(high.best_step, 3);
    evaluator_state_reset(&high);
    assert_false(high.has_best);
    assert_int_equal(high.evaluated_step, 0);
    assert_string_equal(high.metric, "auc");
    assert_true(high.higher_is_better);
}

static void next_checkpoint_is_the_oldest_unless_evaluations_are_too_slow(void **state)
{
    const struct ckpt_entry e[] = { { 10, 1, 1 }, { 20, 2, 1 }, { 30, 3, 1 }, { 40, 4, 1 } };
    struct evaluator_damaged damaged = { .n = 0 };
    size_t skipped;

    (void)state;
#define CHOOSE(n, evaluated, seen) (int)evaluator_choose(e, n, evaluated, seen, &damaged, &skipped)
    assert_int_equal(CHOOSE(0, 0, 0), -1);
    assert_int_equal(CHOOSE(4, 0, 0), 0); /* the first evaluation of a process */
    assert_int_equal(skipped, 0);
    assert_int_equal(CHOOSE(4, 10, 40), 1); /* none was published meanwhile */
    assert_int_equal(CHOOSE(4, 10, 30), 1); /* one was */
    assert_int_equal(skipped, 0);
    assert_int_equal(CHOOSE(4, 10, 20), 3); /* two were: 20 and 30 are skipped */
    assert_int_equal(skipped, 2);
    assert_int_equal(CHOOSE(4, 40, 40), -1);
    evaluator_damaged_add(&damaged, &e[1]);
    evaluator_damaged_add(&damaged, &e[3]);
    assert_int_equal(CHOOSE(4, 10, 20), 2); /* one intact checkpoint was published */
    assert_int_equal(skipped, 0);
    damaged.at[0].inode++; /* its folder was replaced */
    assert_int_equal(CHOOSE(4, 10, 30), 1);
    for (int i = 0; i < 1000; i++) /* the list is bounded */
        evaluator_damaged_add(&damaged, &e[2]);
    assert_int_equal(CHOOSE(3, 20, 0), -1);
}

static void every_fault_leaves_the_old_or_the_new_state(void **state)
{
    struct evaluator_state s = { .metric = "loss" }, again;
    bool is_other, fired = true;
    char spec[32];

    (void)state;
    evaluator_state_record(&s, "d", 10, 0.5);
    assert_int_equal(evaluator_state_write(folder, &s, NULL), 0);
    evaluator_state_record(&s, "d", 20, 0.25);
    for (int n = 1; fired; n++) {
        int rc;

        snprintf(spec, sizeof(spec), "*=fail@%d", n);
        fault_arm(spec, NULL);
        rc = evaluator_state_write(folder, &s, NULL);
        fired = fault_fired();
        fault_arm(NULL, NULL);
        again = read_as("loss", false, &is_other);
        assert_true(again.best_step == 20 || (rc < 0 && again.best_step == 10));
        assert_true(again.best == (again.best_step == 20 ? 0.25 : 0.5));
    }
}

static void folder_is_locked_by_one_process(void **state)
{
    struct err err;
    int one = -1, two = -1;

    (void)state;
    assert_ok(evaluator_lock(folder, &one, &err), &err);
    assert_true(one >= 0);
    assert_int_equal(evaluator_lock(folder, &two, &err), ERR_EXISTS);
    assert_int_equal(two, -1);
    assert_non_null(strstr(err.text, folder));
    close(one);
    assert_ok(evaluator_lock(folder, &two, &err), &err);
    assert_true(two >= 0);
    close(two);
    assert_int_equal(evaluator_lock("/absent", &two, &err), ERR_NOENT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, finish)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(state_is_read_as_it_was_written),
        TEST(state_of_another_metric_or_mode_is_not_used),
        TEST(damaged_state_is_refused_with_the_remedy),
        TEST(best_value_follows_the_mode_and_the_first_wins),
        TEST(next_checkpoint_is_the_oldest_unless_evaluations_are_too_slow),
        TEST(every_fault_leaves_the_old_or_the_new_state),
        TEST(folder_is_locked_by_one_process),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
