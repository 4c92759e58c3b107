/* test_comm_spare.c - spare lanes: an all-reduce in which helpers offer the block of a late rank before, during
 * and after its decision, over TCP, in clear text and under TLS, compared with the tree over all lanes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fault.h"
#include "base/rng.h"
#include "comm/cast.h"
#include "comm/pieces.h"
#include "comm/schedule.h"
#include "comm/spare_lanes.h"

enum {
    RANKS_MAX = 5,
    LARGE = 40011, /* several parts that are stored aside */
    STRIDE = 40064 * sizeof(float),
    ROUNDS = 12,
};

static struct group_piece pieces[PIECES_PER_RANK * RANKS_MAX];
static uint32_t n_pieces, n_lanes;

static float value(uint32_t lane, size_t i, uint32_t round)
{
    const struct rng_key key = { .seed = 7, .step = round };
    uint32_t x = rng_u32(&key, (uint64_t)lane << 24 | i);
    float small = (float)(x % 1000003) / 1000003 - 0.5f;

    return x >> 30 & 1 ? small * 1e6f : small * 1e-3f;
}

static float tree(uint32_t first, uint32_t n, size_t i, uint32_t round)
{
    uint32_t left = 1;

    if (n == 1)
        return value(first, i, round);
    while (left * 2 < n)
        left *= 2;
    return tree(first, left, i, round) + tree(first + left, n - left, i, round);
}

/* What happens between a late rank and its helper in a round. */
enum scenario {
    ALONE,      /* no help */
    GIVEN,      /* the offer arrives before the block was computed */
    APART,      /* it arrives after that */
    GIVES_UP,   /* the late rank begins while the helper computes, which gives up */
    TOO_LATE,   /* the late rank begins while the helper computes, which offers nevertheless */
    SCENARIOS,
};

/* At least one rank waits for no other, so that all rounds end. */
static enum scenario scenario_of(uint32_t round, uint32_t rank, uint32_t world)
{
    const struct rng_key key = { .seed = 11, .step = round };

    return rank == round % world ? ALONE : (enum scenario)(rng_u32(&key, rank) % SCENARIOS);
}

struct run {
    struct cast *k;
    struct comm *c;
    uint32_t rank, world, round;
    float *data;
    size_t count;
    bool has_helped;
};

static struct spare_lanes lanes_of(const struct run *u, uint32_t rank)
{
    return spare_lanes_of(pieces, n_pieces, n_pieces == 0 ? u->k->shares : NULL, rank);
}

static float *vector(struct run *u, uint32_t i)
{
    return (float *)((uint8_t *)u->data + i * STRIDE);
}

static void fill(struct run *u, uint32_t i, uint32_t first, uint32_t n)
{
    for (size_t e = 0; e < u->count; e++)
        vector(u, i)[e] = n > 0 ? tree(first, n, e, u->round) : 0;
}

static bool help(void *arg)
{
    struct run *u = arg;
    uint32_t late = spare_helped(u->rank, u->world);
    struct spare_lanes l = lanes_of(u, late);
    enum scenario s = scenario_of(u->round, late, u->world);

    EXPECT(!u->has_helped, "a second help in one call");
    u->has_helped = true;
    atomic_store(&u->k->stage->number[late], u->round);
    if (s == GIVES_UP || s == TOO_LATE)
        WAIT_UNTIL(!comm_is_late(u->c, 0));
    else
        EXPECT(comm_is_late(u->c, 0), "rank %u waits for the offer, but has begun", late);
    if (s == GIVES_UP)
        return false;
    fill(u, 2, l.block, l.n_block);
    return true;
}

static void wait_for_offer(struct run *u)
{
    WAIT_UNTIL(comm_is_offered(u->c, 0));
}

/* A rank of one lane has no block, and nothing can be offered. */
static enum scenario own_scenario(const struct run *u, uint32_t rank)
{
    return lanes_of(u, rank).n_block == 0 ? ALONE : scenario_of(u->round, rank, u->world);
}

static void one_round(struct run *u)
{
    struct spare_lanes l = lanes_of(u, u->rank);
    uint32_t late = spare_helped(u->rank, u->world);
    enum scenario s = own_scenario(u, u->rank), theirs = own_scenario(u, late);
    struct comm_spare spare = { .arg = u, .help = theirs == ALONE ? NULL : help };
    struct err err;
    int rc;

    u->has_helped = false;
    fill(u, 0, l.first, l.n);
    fill(u, 1, l.block, l.n_block);
    fill(u, 2, 0, 0);
    if (s == GIVEN || s == APART)
        wait_for_offer(u);
    else if (s != ALONE)
        cast_until(u->k, (int)u->rank, u->round);
    EXPECT(s == GIVEN || s == APART || !comm_is_offered(u->c, 0),
           "round %u: an offer of another round", u->round);
    spare.state = s == GIVEN ? SPARE_GIVEN : s == APART ? SPARE_APART : SPARE_OWN;
    if (spare.state == SPARE_OWN && l.joins)
        fill(u, 0, l.first, l.n + l.n_block);
    if (spare.state == SPARE_GIVEN || (spare.state == SPARE_OWN && l.joins))
        fill(u, 1, 0, 1); /* must not be used */
    rc = comm_all_reduce_spared(u->c, 0, u->data, STRIDE, u->count, TENSOR_F32, &spare, &err);
    EXPECT(rc == 0, "round %u, rank %u: %s", u->round, u->rank, err.text);
    for (size_t e = 0; e < u->count; e += u->count < 1000 ? 1 : 17) {
        float want = tree(0, n_lanes, e, u->round);

        EXPECT(memcmp(&u->data[e], &want, sizeof(want)) == 0,
               "round %u, rank %u, scenario %d, element %zu of %zu: %g, expected %g", u->round,
               u->rank, (int)s, e, u->count, u->data[e], want);
    }
    EXPECT(spare.has_offered == (theirs == GIVEN || theirs == APART || theirs == TOO_LATE) &&
               spare.is_used == (theirs == GIVEN) && spare.is_compared == (theirs == APART),
           "round %u, rank %u: helps in scenario %d: offered %d, used %d, compared %d", u->round,
           u->rank, (int)theirs, spare.has_offered, spare.is_used, spare.is_compared);
}

static struct comm *open_spares(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;

    o.spares = true;
    o.view.pieces = pieces;
    o.view.n_pieces = n_pieces;
    o.shares = n_pieces == 0 ? k->shares : NULL;
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    return c;
}

static struct run run_of(struct cast *k, struct comm *c, uint32_t self)
{
    return (struct run){ .k = k,
                         .c = c,
                         .rank = self,
                         .world = k->n,
                         .data = k->arenas[self].base,
                         .count = LARGE };
}

static void scene(struct cast *k, uint32_t self)
{
    struct comm *c = open_spares(k, self);
    struct run u = run_of(k, c, self);
    struct err err;

    EXPECT(comm_spares(c), "no spare lanes: %s", comm_describe(c));
    for (u.round = 1; u.round <= ROUNDS; u.round++) {
        u.count = u.round % 3 == 0 ? LARGE : u.round % 3 == 1 ? 100 : 1;
        one_round(&u);
        if (u.round % 4 == 0)
            EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    }
    comm_close(c);
}

/* n 0: equal shares */
static void play(uint32_t world, uint32_t lanes, const struct group_piece *division, uint32_t n,
                 cast_scene *what, bool encrypts)
{
    char layout[64] = "";
    struct cast k;

    for (uint32_t i = 0; i < world; i++)
        snprintf(layout + 3 * i, 4, "%c1 ", 'A' + (char)i);
    cast_encrypts = encrypts;
    cast_init(&k, layout, true, 3 * STRIDE);
    n_lanes = lanes;
    n_pieces = n;
    for (uint32_t i = 0; i < n; i++)
        pieces[i] = division[i];
    comm_share(NULL, lanes, world, k.shares);
    cast_play(&k, what);
    cast_fini(&k);
    cast_encrypts = false;
}

static void any_moment_of_an_offer_gives_the_bits_of_the_tree(void **state)
{
    (void)state;
    play(2, 4, NULL, 0, scene, false);
    play(2, 7, NULL, 0, scene, true);
    play(3, 8, NULL, 0, scene, false);
    play(3, 5, NULL, 0, scene, false); /* a rank with one lane */
    play(4, 16, NULL, 0, scene, true);
    play(5, 20, NULL, 0, scene, false);
}

static void pieces_have_spare_lanes_too(void **state)
{
    (void)state;
    play(3, 16, (struct group_piece[]){ { 0, 0, 8 }, { 1, 8, 4 }, { 0, 12, 2 }, { 1, 14, 1 }, { 2, 15, 1 } }, 5,
         scene, false);
    play(4, 16, (struct group_piece[]){ { 2, 0, 8 }, { 0, 8, 4 }, { 1, 12, 2 }, { 3, 14, 2 } }, 4, scene, true);
}

/* ---- a wrong copy ---- */

enum { WRONG = 12345 /* the element that differs */ };

static bool help_wrongly(void *arg)
{
    struct run *u = arg;
    struct spare_lanes l = lanes_of(u, spare_helped(u->rank, u->world));

    fill(u, 2, l.block, l.n_block);
    ((uint8_t *)vector(u, 2))[4 * WRONG] ^= 1;
    return true;
}

static void scene_of_a_wrong_copy(struct cast *k, uint32_t self)
{
    struct comm *c = open_spares(k, self);
    struct run u = run_of(k, c, self);
    struct spare_lanes l = lanes_of(&u, self), l_of_1 = lanes_of(&u, 1);
    struct comm_spare spare = { .arg = &u, .help = self == 2 ? help_wrongly : NULL };
    struct comm_range owns;
    struct err err = { 0 };
    int rc;

    u.round = 1;
    fill(&u, 0, l.first, self == 1 ? l.n : l.n + l.n_block);
    fill(&u, 1, l.block, l.n_block);
    if (self == 1) {
        wait_for_offer(&u);
        spare.state = SPARE_APART;
    }
    rc = comm_all_reduce_spared(c, 0, u.data, STRIDE, u.count, TENSOR_F32, &spare, &err);
    EXPECT(rc == ERR_PEER, "rank %u: %d", self, rc);
    EXPECT(strstr(err.text, "worker 1 and worker 2 computed different gradients of lanes 6 to 7") !=
               NULL,
           "rank %u: %s", self, err.text);
    owns = schedule_part(3, self, u.count);
    EXPECT(spare.n_wrong == (WRONG >= owns.begin && WRONG < owns.end ? l_of_1.n_block : 0),
           "rank %u found %u wrong lanes", self, spare.n_wrong);
    comm_close(c);
}

static void copy_that_differs_ends_the_generation_and_both_are_named(void **state)
{
    (void)state;
    play(3, 12, NULL, 0, scene_of_a_wrong_copy, false);
}

/* ---- refusals ---- */

static void scene_of_a_false_state(struct cast *k, uint32_t self)
{
    struct comm *c = open_spares(k, self);
    struct run u = run_of(k, c, self);
    struct comm_spare spare = { .state = self == 1 ? SPARE_GIVEN : SPARE_OWN };
    struct err err = { 0 };

    fill(&u, 0, 0, 1);
    EXPECT(comm_all_reduce_spared(c, 0, u.data, STRIDE, u.count, TENSOR_F32, &spare, &err) ==
               ERR_PEER,
           "rank %u", self);
    EXPECT(strstr(err.text,
                  "rank 1 (worker 1) sent state 1 of its spare block, which is not possible") !=
               NULL,
           "rank %u: %s", self, err.text);
    comm_close(c);
}

static void block_that_nobody_offered_cannot_be_given(void **state)
{
    (void)state;
    play(3, 12, NULL, 0, scene_of_a_false_state, false);
}

static void scene_of_a_task_without_spare_lanes(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err = { 0 };

    o.spares = self == 0;
    EXPECT(cast_connect(&o, &c, &err) < 0, "a group with and without spare lanes");
}

static void tasks_that_disagree_do_not_connect(void **state)
{
    struct cast k;

    (void)state;
    cast_init(&k, "A1 B1", true, 4096);
    k.deadline_ms = 300 * SLOW;
    cast_play(&k, scene_of_a_task_without_spare_lanes);
    cast_fini(&k);
}

static void group_with_ranks_on_one_host_or_one_lane_each_has_no_spare_lanes(void **state)
{
    static const struct {
        const char *layout;
        bool shared_memory;
        uint32_t lanes[3];
        const char *why_not; /* NULL: there are spare lanes */
    } rows[] = {
        { "A1 B1", true, { 2, 2 }, NULL },
        { "A1 B1 C1", true, { 1, 1, 2 }, NULL }, /* the second rank neither has a block nor helps a rank with one */
        { "A1 A1", false, { 2, 2 }, NULL },
        { "A1 B1", true, { 1, 1 }, "each replica computes one lane" },
        { "A1 A1 B1", true, { 1, 1, 2 }, "several replicas are on one host" },
        { "A1 A1", true, { 2, 2 }, "several replicas are on one host" },
        { "A2 B1", true, { 1, 1, 2 }, "several replicas are on one host" },
        { "A1", true, { 2 }, "several replicas are on one host" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct cast k;
        struct comm_opts o;
        struct comm *c = NULL;
        struct err err;

        cast_init(&k, rows[i].layout, rows[i].shared_memory, 4096);
        memcpy(k.shares, rows[i].lanes, sizeof(rows[i].lanes));
        for (uint32_t m = 0; m < k.n; m++) { /* all members decide in the same way */
            o = cast_opts(&k, m);
            o.spares = true;
            assert_int_equal(comm_open(&o, &c, &err), 0);
            assert_int_equal(comm_spares(c), rows[i].why_not == NULL);
            if (rows[i].why_not != NULL)
                assert_string_equal(comm_why_no_spares(c), rows[i].why_not);
            else
                assert_null(comm_why_no_spares(c));
            comm_close(c);
        }
        o.groups = 2;
        assert_int_equal(comm_open(&o, &c, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "spare lanes are not possible with compression"));
        cast_fini(&k);
    }
}

/* ---- the lanes ---- */

static void assert_same(const struct spare_lanes *a, const struct spare_lanes *b)
{
    assert_true(a->first == b->first && a->n == b->n && a->block == b->block &&
                a->n_block == b->n_block && a->joins == b->joins);
}

static void block_is_the_second_piece_or_half(void **state)
{
    static const struct group_piece two[] = { { 1, 0, 4 }, { 0, 4, 2 }, { 2, 6, 1 }, { 1, 7, 1 } };
    static const struct {
        uint32_t rank;
        struct spare_lanes want;
    } of_shares[] = { { 0, { 0, 4, 4, 4, true } },
                      { 1, { 8, 2, 10, 1, true } },
                      { 2, { 11, 1, 12, 0, false } } },
      of_pieces[] = { { 0, { 4, 1, 5, 1, true } },
                      { 1, { 0, 4, 7, 1, false } },
                      { 2, { 6, 1, 7, 0, false } } };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct spare_lanes a =
            spare_lanes_of(NULL, 0, (uint32_t[]){ 8, 3, 1 }, of_shares[i].rank);
        struct spare_lanes b = spare_lanes_of(two, 4, NULL, of_pieces[i].rank);

        assert_same(&a, &of_shares[i].want);
        assert_same(&b, &of_pieces[i].want);
    }
    assert_true(spare_helper(2, 3) == 0 && spare_helped(0, 3) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_is_the_second_piece_or_half),
        cmocka_unit_test(group_with_ranks_on_one_host_or_one_lane_each_has_no_spare_lanes),
        cmocka_unit_test(any_moment_of_an_offer_gives_the_bits_of_the_tree),
        cmocka_unit_test(pieces_have_spare_lanes_too),
        cmocka_unit_test(copy_that_differs_ends_the_generation_and_both_are_named),
        cmocka_unit_test(block_that_nobody_offered_cannot_be_given),
        cmocka_unit_test(tasks_that_disagree_do_not_connect),
    };

    return cmocka_run_group_tests_name("comm/comm_spare", tests, NULL, NULL);
}
