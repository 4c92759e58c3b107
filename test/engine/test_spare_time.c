/* The time of a lane, measured in a step whose spare block another replica contributed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/comm_priv.h"
#include "engine/cpu_spare.h"
#include "engine/cpu_types.h"

enum { LANES = 4, BLOCK = 2, LANE_NS = 1000, DATA_NS = 100 };

struct fixture {
    struct comm comm;
    struct engine engine;
    struct cpu cpu;
    struct engine_replica replica;
    uint64_t now;
};

static void pass(struct fixture *f, uint64_t ns)
{
    f->now += ns;
    clock_fake(f->now);
}

static void init(struct fixture *f)
{
    *f = (struct fixture){ .comm.spares = true, .now = 5000 };
    f->engine.spares = true;
    f->engine.group.comm = &f->comm;
    f->replica = (struct engine_replica){ .engine = &f->engine, .device = &f->cpu, .n_lanes = LANES,
                                          .n_block = BLOCK };
    clock_fake(f->now);
}

/* Waits for the samples of a lane, and computes for so long. */
static void run_lane(struct fixture *f, uint32_t i, uint64_t ns)
{
    spare_lane_begins(&f->replica, i);
    pass(f, DATA_NS);
    f->replica.data_ns += DATA_NS;
    pass(f, ns);
}

static void block_is_given_lane_time_has_no_time_of_the_block(void **state)
{
    (void)state;
    for (uint32_t complete = 0; complete < BLOCK; complete++) { /* lanes of the block before the offer */
        struct fixture f;
        uint32_t n = LANES - BLOCK + complete;

        init(&f);
        assert_int_equal(spare_begin(&f.replica, 7), 0);
        for (uint32_t i = 0; i < n; i++)
            run_lane(&f, i, LANE_NS);
        run_lane(&f, n, LANE_NS / 2); /* the offer stops it */
        spare_give(&f.replica, n + 1);
        spare_lanes_end(&f.replica);
        assert_int_equal(f.replica.spare.given, BLOCK);
        assert_int_equal(f.replica.spare.given_ns, complete * LANE_NS + LANE_NS / 2);
        assert_int_equal(f.cpu.spare.lane_ns, LANE_NS);
        clock_fake(0);
    }
}

static void block_is_kept_all_lanes_count(void **state)
{
    struct fixture f;

    (void)state;
    init(&f);
    assert_int_equal(spare_begin(&f.replica, 7), 0);
    for (uint32_t i = 0; i < LANES; i++)
        run_lane(&f, i, LANE_NS);
    spare_lanes_end(&f.replica);
    assert_int_equal(f.replica.spare.given_ns, 0);
    assert_int_equal(f.cpu.spare.lane_ns, LANE_NS);
    clock_fake(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_is_given_lane_time_has_no_time_of_the_block),
        cmocka_unit_test(block_is_kept_all_lanes_count),
    };

    return cmocka_run_group_tests_name("engine/spare_time", tests, NULL, NULL);
}
