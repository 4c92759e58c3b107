/* The sentence for `systemctl status`. What is sent, and when, is test/e2e/test_service.py. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/check.h"
#include "daemon/service.h"
#include "rdzv/rdzv.h"

static void a_sentence_says_phase_step_group_and_trouble(void **state)
{
    static const struct {
        struct rdzv_progress p;
        uint64_t generation;
        uint32_t present, world;
        const char *expected;
    } rows[] = {
        { { .phase = "starting", .phase_since_ms = 1000 }, 0, 1, 1, "starting for 4 s" },
        { { .phase = "index", .phase_since_ms = 9000 }, 0, 1, 2, "index for 0 s, 1 of 2 tasks present" },
        { { .phase = "train", .step = 120, .total_steps = 440, .loss = 0.3125 }, 2, 3, 4,
          "train: step 120 of 440 (27 %), loss 0.3125, generation 2, 3 of 4 tasks present" },
        { { .phase = "train", .step = 120, .total_steps = 440, .loss = 0.3125 }, 1, 1, 1,
          "train: step 120 of 440 (27 %), loss 0.3125" },
        { { .phase = "save", .phase_since_ms = 3000, .step = 440, .total_steps = 440 }, 1, 2, 2,
          "save for 2 s, step 440 of 440 (100 %) done, generation 1, 2 of 2 tasks present" },
        { { .phase = "waiting", .phase_since_ms = 2000, .last_trouble = "worker 1 is missing" }, 0, 1, 2,
          "waiting for 3 s, 1 of 2 tasks present; last trouble: worker 1 is missing" },
    };
    char text[1400];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        service_sentence(&rows[i].p, rows[i].generation, rows[i].present, rows[i].world, 5000, text, sizeof(text));
        assert_string_equal(text, rows[i].expected);
    }
}

static void a_long_trouble_is_cut(void **state)
{
    struct rdzv_progress p = { .phase = "train", .step = 1, .total_steps = 2 };
    char text[200];

    (void)state;
    memset(p.last_trouble, 'x', sizeof(p.last_trouble) - 1);
    memset(text, '#', sizeof(text));
    service_sentence(&p, 1, 1, 1, 0, text, sizeof(text));
    assert_int_equal(strlen(text), sizeof(text) - 1);
    service_sentence(&p, 1, 1, 1, 0, text, 20);
    assert_string_equal(text, "train: step 1 of 2 ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sentence_says_phase_step_group_and_trouble),
        cmocka_unit_test(a_long_trouble_is_cut),
    };

    return cmocka_run_group_tests_name("daemon/service", tests, NULL, NULL);
}
