/* test_placement.c - when tasks are placed anew, over synthetic windows: a group whose racks have slow uplinks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/rng.h"
#include "daemon/placement.h"

enum { TASKS = 4, WINDOW_S = 10 };

struct group {
    struct placement p;
    struct placement_limits limits;
    const char *racks; /* a letter for each task */
    double compute, slow; /* seconds of a step; of waits for a link between racks that carries what alternating racks send */
    double gain;          /* part of the predicted saving that comes */
    double noise;         /* all rates vary by up to this factor */
    double sent;          /* vectors: 2, or 1 once the tasks are placed */
    bool is_placed;
    uint64_t generation, now_s;
    uint32_t n_moves;
    struct placement_move move; /* the last one */
};

static const struct rng_key key = { .seed = 20261128 };
static uint32_t drawn;

static double draw(void)
{
    return rng_f32(&key, drawn++);
}

static void init(struct group *g, const char *racks)
{
    memset(g, 0, sizeof(*g));
    g->limits = (struct placement_limits){ .gain = 0.2, .seconds = 60 };
    g->generation = 1;
    g->racks = racks;
    g->compute = 0.05;
    g->slow = 0.1;
    g->gain = 1;
    g->noise = 1;
    g->sent = 2;
}

/* What the racks of a placement save, if they are those of the group. */
static bool predict(void *arg, const uint32_t *racks, double *present, double *placed)
{
    struct group *g = arg;

    (void)racks;
    *present = g->sent;
    *placed = 1;
    return true;
}

static double step_of(const struct group *g)
{
    return g->compute + g->slow * (1 - g->gain * (1 - g->sent / 2));
}

/* One window passes. Returns true if the tasks moved. */
static bool pass(struct group *g)
{
    static const uint32_t ids[TASKS] = { 0, 1, 2, 3 };
    struct placement_link links[TASKS * TASKS] = { { 0 } };
    struct placement_window w = { .generation = g->generation,
                                  .steps = 50,
                                  .step_seconds = step_of(g),
                                  .n = TASKS,
                                  .ids = ids,
                                  .links = links,
                                  .is_placed = g->is_placed,
                                  .predict = predict,
                                  .arg = g };

    for (uint32_t i = 0; i < TASKS; i++)
        for (uint32_t k = 0; k < TASKS; k++) {
            bool is_slow = g->racks[i] != g->racks[k];
            double rate = (is_slow ? 25e6 : 1e9) * (1 + (g->noise - 1) * draw());

            /* a task exchanges with two others */
            if ((i ^ k) == 1 || (i ^ k) == 2)
                links[i * TASKS + k] = (struct placement_link){
                    .is_used = true, .slow = is_slow ? g->slow * g->sent / 2 : 0.002, .rate = rate
                };
        }
    g->now_s += WINDOW_S;
    if (!placement_judge(&g->p, &g->limits, &w, 1000 * g->now_s, &g->move))
        return false;
    g->is_placed = !g->move.returns;
    g->sent = g->move.returns ? 2 : 1;
    g->generation++;
    g->n_moves++;
    return true;
}

static void pass_until(struct group *g, uint64_t s)
{
    while (g->now_s < s)
        (void)pass(g);
}

static void alternating_racks_are_found_after_three_windows_and_stay(void **state)
{
    static const uint32_t racks[] = { 0, 1, 0, 1 };
    struct group g;

    (void)state;
    init(&g, "abab");
    pass_until(&g, 30);
    assert_int_equal(g.n_moves, 0); /* the first window is warm-up */
    pass_until(&g, 40);
    assert_int_equal(g.n_moves, 1);
    assert_int_equal(g.move.n_racks, 2);
    assert_memory_equal(g.move.racks, racks, sizeof(racks));
    assert_true(g.move.slow == 25e6 && g.racks[g.move.a] != g.racks[g.move.b]);
    assert_true(fabs(g.move.before - 0.15) < 1e-9 && fabs(g.move.after - 0.1) < 1e-9);
    pass_until(&g, 3600);
    assert_int_equal(g.n_moves, 1);
    assert_true(g.p.trial.patience == 60); /* the gain came */
}

static void healthy_group_is_never_placed_anew(void **state)
{
    struct group g;

    (void)state;
    init(&g, "aaaa");
    g.noise = 2.9;
    pass_until(&g, 36000);
    assert_int_equal(g.n_moves, 0);
    init(&g, "abab"); /* slow links, but little to save */
    g.compute = 1;
    pass_until(&g, 3600);
    assert_int_equal(g.n_moves, 0);
}

static void wrong_inference_returns_once_and_is_not_tried_again(void **state)
{
    struct group g;

    (void)state;
    init(&g, "abab");
    g.gain = -0.1; /* a step takes longer */
    pass_until(&g, 36000);
    assert_int_equal(g.n_moves, 2);
    assert_true(g.move.returns && !g.is_placed);
    assert_true(g.p.trial.patience >= 120);
}

static void slow_window_and_a_change_of_racks_are_no_three_windows(void **state)
{
    struct group g;

    (void)state;
    init(&g, "abab");
    for (int i = 0; i < 60; i++) { /* two windows in three have slow links */
        g.slow = i % 3 == 0 ? 0.001 : 0.1;
        assert_false(pass(&g));
    }
}

static void racks_need_a_gap_and_no_slow_link_inside(void **state)
{
    /* rates of the pairs 01 02 03 12 13 23; 'i': no wait, '.': not known, else the digit in MB/s */
    static const struct {
        const char *rates;
        uint32_t n, racks[TASKS];
    } rows[] = {
        { "191191", 2, { 0, 1, 0, 1 } },
        { "191119", 1, { 0, 0, 0, 0 } }, /* 02 and 23 are fast, but 03 is slow */
        { "911119", 2, { 0, 0, 1, 1 } }, { "119911", 2, { 0, 1, 1, 0 } },
        { "1i11i1", 2, { 0, 1, 0, 1 } }, { "1i..i1", 2, { 0, 1, 0, 1 } }, { "233323", 1, { 0, 0, 0, 0 } },
        { "1ii1ii", 1, { 0, 0, 0, 0 } }, { "......", 1, { 0, 0, 0, 0 } }, { "111999", 2, { 0, 1, 1, 1 } },
        { "iiiiii", 1, { 0, 0, 0, 0 } }, { "111111", 1, { 0, 0, 0, 0 } }, { "28882i", 1, { 0, 0, 0, 0 } },
    };

    (void)state;
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        double rates[TASKS * TASKS] = { 0 }, slow, fast;
        uint32_t racks[TASKS], n;
        const char *c = rows[r].rates;

        for (uint32_t i = 0; i < TASKS; i++)
            for (uint32_t k = i + 1; k < TASKS; k++, c++)
                rates[i * TASKS + k] = rates[k * TASKS + i] = *c == 'i'   ? INFINITY
                                                              : *c == '.' ? 0
                                                                          : 1e6 * (*c - '0');
        n = placement_find_racks(rates, TASKS, racks, &slow, &fast);
        if (n != rows[r].n || memcmp(racks, rows[r].racks, sizeof(racks)) != 0)
            fail_msg("%s: %u racks: %u %u %u %u", rows[r].rates, n, racks[0], racks[1], racks[2],
                     racks[3]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alternating_racks_are_found_after_three_windows_and_stay),
        cmocka_unit_test(healthy_group_is_never_placed_anew),
        cmocka_unit_test(wrong_inference_returns_once_and_is_not_tried_again),
        cmocka_unit_test(slow_window_and_a_change_of_racks_are_no_three_windows),
        cmocka_unit_test(racks_need_a_gap_and_no_slow_link_inside),
    };

    return cmocka_run_group_tests_name("daemon/placement", tests, NULL, NULL);
}
