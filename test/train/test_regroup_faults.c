/* test_regroup_faults.c - a task fails or is killed at any fault point of a step, and the others continue with the same
 * bits. Tasks are processes. */
#include "base/check.h"
#include "train/regroup.h"

static void play_fault(const char *hosts, uint32_t devices, uint32_t faulty, const char *fault)
{
    struct troupe *k = new_troupe(hosts, devices);
    char what[128];
    bool kills = strstr(fault, "kill") != NULL, before;

    snprintf(what, sizeof(what), "%s of worker %u in %s", fault, faulty, hosts);
    before = strstr(fault, "state_") != NULL;
    if (before) { /* one task must hold an older state: worker 2 joins late */
        troupe_start(k);
        troupe_until(k, 2);
        troupe_pause(k, 0);
        troupe_kill(k, 2);
        troupe_enter(k, 2);
    }
    troupe_start_with(k, faulty, fault);
    troupe_wait(k);
    if (kills && k->tasks[faulty].pid != 0)
        fail_msg("%s: it lives", what);
    if (!kills && k->tasks[faulty].last.end != TRAIN_FAILED)
        fail_msg("%s: it ended with %d", what, (int)k->tasks[faulty].last.end);
    if (!kills && strstr(fault, "state_recv") == NULL &&
        strstr(k->tasks[faulty].last.text, "fault point") == NULL)
        fail_msg("%s: it says '%s'", what, k->tasks[faulty].last.text);
    for (uint32_t i = 0; i < k->n; i++) {
        uint64_t ahead = k->tasks[i].held > k->tasks[1 - faulty % 2].held
                             ? k->tasks[i].held - k->tasks[1 - faulty % 2].held
                             : 0;

        if (k->tasks[i].pid != 0 && ahead > 1 && !before)
            fail_msg("%s: worker %u is %llu steps ahead", what, i, (unsigned long long)ahead);
    }
    (void)troupe_to_the_end(k);
    for (uint32_t i = 0; i < k->n; i++)
        if (k->tasks[i].pid != 0 && !(before && i == 2))
            expect_told(k, i, 1, what);
    expect_same_end(k, what);
    troupe_free(k);
}

/* Runs generations, each with the next fault, on one task after the other. */
static void fault_at_any_point_loses_no_bit(void **state)
{
    static const char *const faults[] = { "train.connect", "train.agree", "train.forward",
                                          "train.bucket@2", "train.reduce", "train.commit",
                                          "train.update", "train.update_middle",
                                          "train.update_end", "train.evaluate",
                                          "train.evaluated" };
    static const char *const layouts[] = { "AAA", "AAB" };

    (void)state;
    for (size_t l = EVERY / 2; l < COUNT_OF(layouts); l++) {
        struct troupe *k = new_troupe(layouts[l], 1);

        for (uint32_t i = 0; i < COUNT_OF(faults); i++) {
            uint32_t faulty = (i + (uint32_t)l) % k->n;
            const struct news *n = &k->tasks[faulty].last;

            troupe_start_with(k, faulty, faults[i]);
            troupe_wait(k);
            if (n->end != TRAIN_FAILED || strstr(n->text, "fault point train.") == NULL)
                fail_msg("%s of worker %u in %s: it ended with %d, '%s'", faults[i], faulty,
                         layouts[l], (int)n->end, n->text);
            for (uint32_t t = 0; t < k->n; t++)
                if (k->tasks[t].held > n->held + 1 || n->held > k->tasks[t].held + 1)
                    fail_msg("%s of worker %u in %s: it holds step %llu, worker %u %llu", faults[i],
                             faulty, layouts[l], (unsigned long long)n->held, t,
                             (unsigned long long)k->tasks[t].held);
        }
        assert_int_equal(k->tasks[0].held, EVAL_STEPS);
        (void)troupe_to_the_end(k);
        for (uint32_t t = 0; t < k->n; t++)
            expect_told(k, t, 1, layouts[l]);
        expect_same_end(k, layouts[l]);
        troupe_free(k);
    }
    play_fault("AA", 2, 1, "train.commit@5"); /* one of two replicas */
    play_fault("AA", 2, 0, "train.update_middle@6");
    play_fault("AAA", 1, 0, "train.state_send@1");
    play_fault("AAB", 1, 2, "train.state_recv@1");
}

/* Fault points with the passage at which they occur; some with a second passage. */
static const char *const points[] = {
    "train.connect@1",       "train.agree@1",      "train.forward@1",  "train.forward@6",
    "train.bucket@1",        "train.bucket@7",     "train.bucket@13",  "train.reduce@5",
    "train.commit@4",        "train.commit@5",     "train.update@4",   "train.update_middle@6",
    "train.update_end@12",   "train.evaluate@2",   "train.evaluated@2", "train.state_send@1",
};

static void with_kill(const char *point, char out[96])
{
    const char *at = strchr(point, '@');

    snprintf(out, 96, "%.*s=kill%s", (int)(at - point), point, at);
}

static void kill_at_any_point_loses_no_bit(void **state)
{
    char fault[96];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(points); i += EVERY) {
        bool sends = strstr(points[i], "state_send") != NULL;

        with_kill(points[i], fault);
        play_fault(i / EVERY % 2 ? "AAA" : "AAB", 1, sends ? 0 : (i + 1) % 3, fault);
    }
    play_fault("AAA", 1, 2, "train.state_recv=kill@1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fault_at_any_point_loses_no_bit),
        cmocka_unit_test(kill_at_any_point_loses_no_bit),
    };

    return cmocka_run_group_tests_name("train/regroup_faults", tests, run_undisturbed,
                                       forget_undisturbed);
}
