/* Which jobs with compressed gradients a task refuses, and how the decision becomes text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "train/agree_message.h"
#include "train/coding.h"
#include "train/task.h"

static const struct device cpu = { .kind = DEVICE_CPU }, gpu = { .kind = DEVICE_CUDA };
static const struct train_phase local_phase = { .mode = TRAIN_LOCAL_SGD, .groups = 2, .sync_every = 3 };

static struct train_opts opts_of(enum code_kind kind, uint32_t groups, uint32_t lanes)
{
    return (struct train_opts){ .lanes = lanes,
                                .devices = &cpu,
                                .n_devices = 1,
                                .code = { .kind = kind, .groups = groups } };
}

static void refused(const struct train_opts *o, int code, const char *place, const char *remedy)
{
    struct err err;

    assert_int_equal(coding_check(o, &err), code);
    if (strstr(err.text, place) == NULL || strstr(err.text, remedy) == NULL)
        fail_msg("'%s', expected '%s' and '%s'", err.text, place, remedy);
}

static void unsupported_combinations_are_refused_with_place_and_remedy(void **state)
{
    struct train_opts o = opts_of(CODE_INT8, 2, 8);

    (void)state;
    assert_int_equal(coding_check(&o, NULL), 0);
    o.devices = &gpu;
    for (int kind = CODE_BFLOAT16; kind <= CODE_POWER_SGD; kind++) {
        o.code.kind = (enum code_kind)kind;
        assert_int_equal(coding_check(&o, NULL), 0);
    }
    o.run.phases = &local_phase;
    o.run.n_phases = 1;
    refused(&o, ERR_UNSUPPORTED, "/communication/compression/code", "remove them");
    o.only_evaluates = true; /* an evaluator reduces no gradients */
    assert_int_equal(coding_check(&o, NULL), 0);
    o.only_evaluates = false;
    o.code.kind = CODE_NONE;
    assert_int_equal(coding_check(&o, NULL), 0);
}

static void groups_that_are_no_blocks_of_lanes_are_refused(void **state)
{
    static const struct {
        uint32_t groups, lanes;
    } cases[] = { { 0, 8 }, { 3, 8 }, { 16, 8 }, { 2, 6 }, { 4, 12 } };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct train_opts o = opts_of(CODE_INT4, cases[i].groups, cases[i].lanes);

        refused(&o, ERR_INPUT, "/communication/compression/groups", "use a power of two of lanes");
    }
}

static void codes_with_residuals_need_a_group_for_each_replica(void **state)
{
    struct train_opts o = opts_of(CODE_TOP_K, 4, 8);

    (void)state;
    o.replicas = 4;
    assert_int_equal(coding_check(&o, NULL), 0);
    o.replicas = 5;
    refused(&o, ERR_INPUT, "/communication/compression/groups",
            "4 groups are too few for 5 replicas");
    o.code.kind = CODE_INT8; /* no residuals */
    assert_int_equal(coding_check(&o, NULL), 0);
}

static void checkpoints_with_other_residuals_are_refused(void **state)
{
    static const struct {
        enum code_kind job;
        uint32_t groups, theirs; /* of the job, of the checkpoint */
        const char *code;        /* of the checkpoint */
        bool fits;
    } cases[] = {
        { CODE_TOP_K, 4, 0, "", true },           { CODE_TOP_K, 4, 0, "int8", true },
        { CODE_TOP_K, 4, 4, "top_k", true },      { CODE_TOP_K, 4, 4, "none", true },
        { CODE_TOP_K, 4, 2, "top_k", false },     { CODE_TOP_K, 4, 4, "power_sgd", false },
        { CODE_NONE, 0, 4, "top_k", false },      { CODE_INT8, 4, 4, "power_sgd", false },
        { CODE_POWER_SGD, 4, 4, "power_sgd", true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct train_opts o = opts_of(cases[i].job, cases[i].groups, 8);
        struct ckpt_meta meta = { .residual_groups = cases[i].theirs };
        struct err err;

        strcpy(meta.compression, cases[i].code);
        assert_int_equal(coding_check_resume(&o, &meta, "ckpt/step", &err),
                         cases[i].fits ? 0 : ERR_INPUT);
        if (!cases[i].fits && strstr(err.text, "ckpt/step has the residuals of") == NULL)
            fail_msg("'%s'", err.text);
    }
}

static void decision_of_the_network_is_made_once(void **state)
{
    struct train_opts o = opts_of(CODE_INT8, 2, 8);
    struct engine engine = { 0 };
    struct train t = { .opts = &o, .engine = &engine };
    struct agreement network = { .uses_network = true }, memory = { .uses_network = false };

    (void)state;
    coding_adopt(&t, &memory); /* always */
    assert_true(engine.group.codes && coding_fact(&t) == CODING_ON);
    o.code.when = CODE_NETWORK;
    coding_adopt(&t, &memory);
    assert_true(!engine.group.codes && coding_fact(&t) == CODING_OFF);
    coding_adopt(&t, &network); /* no step was applied: decided again */
    assert_true(engine.group.codes && coding_fact(&t) == CODING_ON);
    t.state.facts.coding = CODING_ON;
    coding_adopt(&t, &memory);
    assert_true(engine.group.codes);
    t.state.facts.coding = CODING_OFF;
    coding_adopt(&t, &network);
    assert_true(!engine.group.codes);
    o.code.kind = CODE_NONE;
    coding_adopt(&t, &network);
    assert_true(!engine.group.codes && coding_fact(&t) == CODING_UNDECIDED);
}

static void decision_is_read_as_it_was_written(void **state)
{
    const struct train_opts o = opts_of(CODE_INT8, 2, 8), none = opts_of(CODE_NONE, 0, 8);

    (void)state;
    assert_string_equal(coding_text(&o, CODING_ON), "int8");
    for (int c = CODING_UNDECIDED; c < CODINGS; c++)
        assert_int_equal(coding_from_text(&o, coding_text(&o, (enum coding)c)), c);
    assert_int_equal(coding_from_text(&o, "int4"), CODING_ON); /* the job has another code now */
    assert_int_equal(coding_from_text(&none, "int4"), CODING_UNDECIDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsupported_combinations_are_refused_with_place_and_remedy),
        cmocka_unit_test(groups_that_are_no_blocks_of_lanes_are_refused),
        cmocka_unit_test(codes_with_residuals_need_a_group_for_each_replica),
        cmocka_unit_test(checkpoints_with_other_residuals_are_refused),
        cmocka_unit_test(decision_of_the_network_is_made_once),
        cmocka_unit_test(decision_is_read_as_it_was_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
