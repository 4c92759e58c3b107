/* test_reduce.c - the all-reduce of gradients during backward: tasks as processes, connected by
 * shared memory or sockets. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/fault.h"
#include "comm/cast.h"
#include "train/fixture.h"

enum { FEW_STEPS = 12, LANES = 4, SMALL = 4096, ODD = 10007, HANG_STEP = 6 };

/* Options of all members of a scene. */
static struct {
    uint32_t lanes;
    enum train_overlap overlap;
    size_t bucket_bytes;
    uint32_t faulty;       /* member; CAST_MAX: none */
    const char *fault;
    uint64_t deadline_ms;
} play;

/* Trains; writes to number[self] the checksum of state and losses, to number[16 + self] the result
 * of the generation, to number[32 + self] the number of buckets of a step. */
static void train_scene(struct cast *k, uint32_t self)
{
    struct fixture *f = fixture_new(k->members[self].n_devices, play.lanes);
    struct train_generation g = { .view.generation = 1,
                                  .view.members = k->members,
                                  .view.n_members = k->n,
                                  .view.self = self,
                                  .listener = k->n > 1 ? k->listeners[self] : NULL,
                                  .shared_memory = k->shared_memory,
                                  .deadline_ms = play.deadline_ms != 0 ? play.deadline_ms : 20000 };
    struct err err;

    memcpy(g.key, k->key, COMM_KEY_BYTES);
    f->opts.replicas = 0;
    for (uint32_t i = 0; i < k->n; i++)
        f->opts.replicas += k->members[i].n_devices;
    f->opts.run.steps = FEW_STEPS;
    f->opts.global_batch = 8 * play.lanes;
    f->opts.health.check_gradients = true; /* tasks of any size compute the same checksums */
    f->opts.health.check_weights_every_steps = 3;
    f->opts.overlap = play.overlap;
    f->opts.bucket_bytes = play.bucket_bytes;
    if (self == play.faulty)
        EXPECT(fault_arm(play.fault, &err) == 0, "%s", err.text);
    fixture_train(f, &g);
    k->stage->number[self] =
        (uint64_t)crc32c(0, f->train->engine->memory.state, f->train->engine->memory.state_bytes)
            << 32 |
        crc32c(0, f->losses, sizeof(f->losses));
    k->stage->number[16 + self] = f->end;
    k->stage->number[32 + self] = f->train->replicas[0].device->n_buckets;
    snprintf(k->stage->text[self], sizeof(k->stage->text[self]), "%s", f->text);
    fixture_free(f);
}

static void set_up(struct cast *k, const char *layout, bool shared_memory,
                   enum train_overlap overlap, size_t bucket_bytes)
{
    play.lanes = LANES;
    play.overlap = overlap;
    play.bucket_bytes = bucket_bytes;
    play.faulty = CAST_MAX;
    play.deadline_ms = 0;
    cast_init(k, layout, shared_memory, 0);
}

/* Returns the checksum with which all members of this layout end. */
static uint64_t bits(const char *layout, bool shared_memory, enum train_overlap overlap,
                     size_t bucket_bytes, uint32_t lanes, uint32_t *buckets)
{
    struct cast k;
    uint64_t got;

    set_up(&k, layout, shared_memory, overlap, bucket_bytes);
    play.lanes = lanes;
    cast_play(&k, train_scene);
    got = k.stage->number[0];
    *buckets = (uint32_t)k.stage->number[32];
    for (uint32_t i = 0; i < k.n; i++) {
        assert_int_equal(k.stage->number[16 + i], TRAIN_COMPLETE);
        assert_int_equal(k.stage->number[32 + i], *buckets);
        assert_int_equal(k.stage->number[i], got);
    }
    cast_fini(&k);
    return got;
}

static void buckets_change_no_bit_for_any_placement_of_replicas(void **state)
{
    static const struct { const char *layout; bool shared_memory; } rows[] = {
        { "A2", true },  { "A4", true },          { "A1 A1", true },   { "A1 A1", false },
        { "A2 B2", true }, { "A1 A1 B1 B1", true }, { "A1 B1 A1 B1", true },
    };
    uint32_t n;
    uint64_t alone = bits("A1", true, TRAIN_OVERLAP_ALWAYS, SMALL, LANES, &n);

    (void)state;
    assert_int_equal(n, 1); /* no peer to reduce with */
    for (size_t i = 0; i < COUNT_OF(rows); i += EVERY) {
        const char *layout = rows[i].layout;
        bool memory = rows[i].shared_memory;

        assert_true(bits(layout, memory, TRAIN_OVERLAP_NEVER, SMALL, LANES, &n) == alone);
        assert_int_equal(n, 1);
        if (bits(layout, memory, TRAIN_OVERLAP_ALWAYS, SMALL, LANES, &n) != alone)
            fail_msg("%s: other bits with %u buckets", layout, n);
        assert_true(n > 10);
        if (bits(layout, memory, TRAIN_OVERLAP_ALWAYS, ODD, LANES, &n) != alone)
            fail_msg("%s: other bits with %u buckets", layout, n);
        assert_true(n > 3);
    }
}

static void lanes_of_any_number_are_added_along_their_tree_for_each_bucket(void **state)
{
    uint32_t n;

    (void)state;
    /* 3, 5, 6, 7 lanes of a replica: incomplete trees */
    for (uint32_t lanes = 2; lanes <= 16; lanes += 2 * EVERY)
        assert_true(bits("A1 B1", true, TRAIN_OVERLAP_ALWAYS, SMALL, lanes, &n) ==
                    bits("A1 B1", true, TRAIN_OVERLAP_NEVER, 0, lanes, &n));
}

static void overlap_auto_is_used_over_a_network_with_several_buckets(void **state)
{
    uint32_t n;

    (void)state;
    (void)bits("A1 A1", true, TRAIN_OVERLAP_AUTO, SMALL, LANES, &n);
    assert_int_equal(n, 1); /* over shared memory */
    (void)bits("A1 B1", true, TRAIN_OVERLAP_AUTO, SMALL, LANES, &n);
    assert_true(n > 10);
    (void)bits("A1 B1", true, TRAIN_OVERLAP_AUTO, 0, LANES, &n);
    assert_int_equal(n, 1); /* the digits network is small */
}

static void three_tasks_have_the_bits_of_one_host(void **state)
{
    static const char *const layouts[] = { "A1 B1 C1", "A2 B1" };
    uint32_t n;
    uint64_t one_host = bits("A3", true, TRAIN_OVERLAP_NEVER, 0, 6, &n);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        assert_true(bits(layouts[i], true, TRAIN_OVERLAP_NEVER, 0, 6, &n) == one_host);
        assert_true(bits(layouts[i], true, TRAIN_OVERLAP_ALWAYS, SMALL, 6, &n) == one_host);
        assert_true(n > 10);
    }
}

/* A fault occurs on one member; checks that all members soon end with a failure. The first members
 * that detect the loss name the faulty member; they end too, so that a later member may name one of
 * them. */
static void play_fault(const char *layout, bool shared_memory, uint32_t faulty, const char *fault)
{
    struct cast k;
    bool kills = strstr(fault, "kill") != NULL, is_named = false;

    set_up(&k, layout, shared_memory, TRAIN_OVERLAP_ALWAYS, SMALL);
    play.faulty = faulty;
    play.fault = fault;
    if (kills)
        k.expect_signal[faulty] = SIGKILL;
    cast_play(&k, train_scene);
    for (uint32_t i = 0; i < k.n; i++) {
        if (kills && i == faulty)
            continue;
        if (k.stage->number[16 + i] != TRAIN_FAILED)
            fail_msg("%s of worker %u in %s: worker %u ended with %d", fault, faulty, layout, i,
                     (int)k.stage->number[16 + i]);
        /* Either end of a connection that was reset may be named. */
        if (strstr(k.stage->text[i], strstr(fault, "comm.") ? "worker " : k.names[faulty]) !=
                NULL ||
            strstr(k.stage->text[i], "fault point") != NULL)
            is_named |= i != faulty;
        else if (strstr(k.stage->text[i], ") has left") == NULL)
            fail_msg("%s of worker %u: worker %u says '%s'", fault, faulty, i, k.stage->text[i]);
    }
    if (!is_named && k.n > 1)
        fail_msg("%s of worker %u: nobody names it", fault, faulty);
    cast_fini(&k);
}

static void fault_at_any_point_of_a_step_ends_all_members(void **state)
{
    static const char *const faults[] = { "train.forward@5", "train.bucket@1", "train.bucket@27",
                                          "train.reduce@4",  "train.update@6", "comm.send=fail@200",
                                          "comm.recv=fail@300" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(faults); i++)
        play_fault("A1 B1", true, i % 2, faults[i]);
    play_fault("A2 B2", true, 1, "train.bucket@40");
    play_fault("A2", true, 0, "train.bucket@40");
    play_fault("A1 A1", true, 1, "train.reduce@4");
}

static void member_killed_between_two_buckets_is_named_by_the_others(void **state)
{
    (void)state;
    play_fault("A1 B1", true, 1, "train.bucket=kill@30");
    play_fault("A1 A1", true, 0, "train.bucket=kill@31");
    play_fault("A1 A1 B1 B1", true, 2, "train.bucket=kill@45");
}

/* The peers wait for the bucket until the deadline of a call. */
static void member_hung_between_two_buckets_is_named_at_the_deadline(void **state)
{
    struct cast k;

    (void)state;
    set_up(&k, "A1 B1", true, TRAIN_OVERLAP_ALWAYS, SMALL);
    play.faulty = 1;
    play.fault = "train.bucket=delay:3000@30";
    play.deadline_ms = 1000 * SLOW;
    if (SLOW > 1)
        play.fault = "train.bucket=delay:18000@30";
    cast_play(&k, train_scene);
    assert_int_equal(k.stage->number[16], TRAIN_FAILED);
    assert_int_equal(k.stage->number[17], TRAIN_FAILED);
    assert_non_null(strstr(k.stage->text[0], "worker 1"));
    cast_fini(&k);
}

enum { WATCHED = 48 }; /* number[WATCHED + self]: place of the member while one hangs */

static struct train_progress look_until(struct fixture *f,
                                        bool (*is)(const struct train_progress *, uint64_t),
                                        uint64_t x)
{
    struct train_progress p;

    WAIT_UNTIL((train_progress(f->train, &p), is(&p, x)));
    return p;
}

static bool is_too_long(const struct train_progress *p, uint64_t unused)
{
    (void)unused;
    return p->limit_ms > 0 && clock_ns() - p->since_ns > p->limit_ms * UINT64_C(1000000);
}

static bool is_further(const struct train_progress *p, uint64_t place)
{
    return p->place > place;
}

/* Trains until the faulty member hangs; then all members record their places. */
static void watched_scene(struct cast *k, uint32_t self)
{
    struct fixture *f = fixture_new(1, play.lanes);
    struct train_generation g = { .view.generation = 1,
                                  .view.members = k->members,
                                  .view.n_members = k->n,
                                  .view.self = self,
                                  .listener = k->listeners[self],
                                  .deadline_ms = 60000 };
    struct train_progress p;
    struct err err;

    f->opts.replicas = k->n;
    f->opts.run.steps = FEW_STEPS;
    f->opts.global_batch = 8 * play.lanes;
    f->opts.overlap = play.overlap;
    f->opts.bucket_bytes = play.bucket_bytes;
    f->opts.health.stuck_factor = 2;
    if (self == play.faulty)
        EXPECT(fault_arm(play.fault, &err) == 0, "%s", err.text);
    fixture_open(f);
    EXPECT(train_start(f->train, &g, fixture_end, &err) == 0, "%s", err.text);
    if (self == play.faulty) {
        p = look_until(f, is_too_long, 0);
    } else {
        cast_until(k, WATCHED + (int)play.faulty, 1);
        p = look_until(f, is_further, k->stage->number[WATCHED + play.faulty]);
        EXPECT(p.limit_ms == 0, "%llu ms", (unsigned long long)p.limit_ms);
    }
    EXPECT(strcmp(p.phase, "reduce") == 0 && p.step == HANG_STEP, "%s, step %llu", p.phase,
           (unsigned long long)p.step);
    k->stage->number[WATCHED + self] = p.place;
    for (uint32_t i = 0; i < k->n; i++)
        cast_until(k, WATCHED + (int)i, 1);
    (void)fs_remove_tree(f->folder, NULL);
    _exit(0); /* a thread hangs */
}

/* The first bucket, one in the middle, and the last one, which the replica reduces itself. */
static void member_hung_in_any_bucket_ranks_below_the_others_which_wait(void **state)
{
    struct cast k;
    char fault[64];
    uint32_t n;

    (void)state;
    (void)bits("A1 B1", false, TRAIN_OVERLAP_ALWAYS, SMALL, LANES, &n);
    assert_true(n > 10);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t bucket = i == 0 ? 1 : i == 1 ? n / 2 : n;

        set_up(&k, "A1 B1 C1 D1", false, TRAIN_OVERLAP_ALWAYS, SMALL);
        snprintf(fault, sizeof(fault), "train.bucket=hang@%u", (HANG_STEP - 1) * n + bucket);
        play.faulty = i;
        play.fault = fault;
        cast_play(&k, watched_scene);
        cast_fini(&k);
    }
}

/* A killed process does not remove its folder. */
static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "%s/trainerd-reduce-XXXXXX", in_memory());
    fixture_root = folder;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    struct err err;

    (void)state;
    return fs_remove_tree(folder, &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_change_no_bit_for_any_placement_of_replicas),
        cmocka_unit_test(lanes_of_any_number_are_added_along_their_tree_for_each_bucket),
        cmocka_unit_test(overlap_auto_is_used_over_a_network_with_several_buckets),
        cmocka_unit_test(three_tasks_have_the_bits_of_one_host),
        cmocka_unit_test(fault_at_any_point_of_a_step_ends_all_members),
        cmocka_unit_test(member_killed_between_two_buckets_is_named_by_the_others),
        cmocka_unit_test(member_hung_between_two_buckets_is_named_at_the_deadline),
        cmocka_unit_test(member_hung_in_any_bucket_ranks_below_the_others_which_wait),
    };

    return cmocka_run_group_tests_name("train/reduce", tests, make_folder, remove_folder);
}
