/* test_loss_scale.c - compares the state of loss scaling with the documentation of PyTorch's
 * GradScaler, for each step and at the limits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/loss_scale.h"

static const struct loss_scale_rule usual = { .initial = 65536, .min = 1, .max = 16777216, .growth_interval = 3 };

/* Applies steps to a state; each letter is a step: 'g' finite, 'o' overflow. */
static struct loss_scale after(const struct loss_scale_rule *rule, struct loss_scale s,
                               const char *steps)
{
    for (; *steps != '\0'; steps++)
        s = *steps == 'g' ? loss_scale_after_good(rule, s) : loss_scale_after_overflow(rule, s);
    return s;
}

static void expect(struct loss_scale s, double scale, uint32_t good)
{
    if (s.scale != scale || s.good != good)
        fail_msg("scale %g behind %u good steps, expected %g behind %u", s.scale, (unsigned)s.good,
                 scale, (unsigned)good);
}

/* Scale and growth tracker after update() as documented for torch.cuda.amp.GradScaler(65536, 2,
 * 0.5, 3). */
static void scale_and_count_equal_those_of_gradscaler(void **state)
{
    static const struct { const char *steps; double scale; uint32_t good; } rows[] = {
        { "", 65536, 0 },      { "g", 65536, 1 },     { "gg", 65536, 2 },      { "ggg", 131072, 0 },
        { "o", 32768, 0 },     { "ggo", 32768, 0 },   { "ggog", 32768, 1 },    { "ggoggg", 65536, 0 },
        { "gggggg", 262144, 0 }, { "ooo", 8192, 0 },  { "oogggo", 16384, 0 },  { "gggogg", 65536, 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        expect(after(&usual, loss_scale_begin(&usual), rows[i].steps), rows[i].scale, rows[i].good);
}

static void scale_stays_between_minimum_and_maximum(void **state)
{
    const struct loss_scale_rule narrow = { .initial = 8, .min = 4, .max = 16, .growth_interval = 1 };
    struct loss_scale s = loss_scale_begin(&narrow);

    (void)state;
    assert_true(loss_scale_can_shrink(&narrow, s));
    s = after(&narrow, s, "o");
    expect(s, 4, 0);
    assert_false(loss_scale_can_shrink(&narrow, s));
    expect(after(&narrow, s, "ooo"), 4, 0);
    expect(after(&narrow, s, "gggggg"), 16, 0);
}

static void scale_without_growth_interval_never_grows(void **state)
{
    const struct loss_scale_rule fixed = { .initial = 8, .min = 1, .max = 16 };

    (void)state;
    expect(after(&fixed, loss_scale_begin(&fixed), "ggggg"), 8, 0);
    expect(after(&fixed, loss_scale_begin(&fixed), "ggogg"), 4, 0);
}

static void scale_without_a_rule_is_always_one(void **state)
{
    const struct loss_scale_rule none = { 0 };
    struct loss_scale s = loss_scale_begin(&none);

    (void)state;
    assert_false(loss_scale_is_on(&none));
    expect(after(&none, s, "ggoog"), 1, 0);
    assert_false(loss_scale_can_shrink(&none, s));
    expect(loss_scale_resume(&none, (struct loss_scale){ 1024, 5 }), 1, 0);
}

static void scale_of_a_checkpoint_is_limited_by_the_rule(void **state)
{
    static const double odd[] = { 0, -8, 3, 1e-320, NAN, INFINITY };

    (void)state;
    expect(loss_scale_resume(&usual, (struct loss_scale){ 1024, 2 }), 1024, 2);
    expect(after(&usual, loss_scale_resume(&usual, (struct loss_scale){ 1024, 2 }), "g"), 2048, 0);
    expect(after(&usual, loss_scale_resume(&usual, (struct loss_scale){ 1024, UINT32_MAX }), "g"), 2048, 0);
    expect(loss_scale_resume(&usual, (struct loss_scale){ 0x1p30, 1 }), 16777216, 1);
    expect(loss_scale_resume(&usual, (struct loss_scale){ 0.25, 1 }), 1, 1);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) /* invalid scales */
        expect(loss_scale_resume(&usual, (struct loss_scale){ odd[i], 1 }), 65536, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_and_count_equal_those_of_gradscaler),
        cmocka_unit_test(scale_stays_between_minimum_and_maximum),
        cmocka_unit_test(scale_without_growth_interval_never_grows),
        cmocka_unit_test(scale_without_a_rule_is_always_one),
        cmocka_unit_test(scale_of_a_checkpoint_is_limited_by_the_rule),
    };

    return cmocka_run_group_tests_name("train/loss_scale", tests, NULL, NULL);
}
