/* test_waits.c - the counters of waits: each kind of wait is attributed to the member that causes it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "base/fault.h"
#include "comm/cast.h"

enum { LATE_MS = 60, LONGEST_MS = 100 * LATE_MS, FLOATS = 1 << 20, SENDS_MS = 64 };
enum { BEGUN }; /* of the stage: ranks of the other members that begin their call */

static const uint64_t NS = 1000000;
static uint32_t late_ms;

static float *vector_of(struct cast *k, uint32_t self, uint32_t local)
{
    return (float *)((uint8_t *)k->arenas[self].base + local * k->arena_bytes);
}

/* Before the call, because it takes time on a busy machine. */
static void fill(struct cast *k, uint32_t self, uint32_t local)
{
    float *x = vector_of(k, self, local);

    for (uint32_t i = 0; i < FLOATS; i++)
        x[i] = 1;
}

static void reduce_all(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    float *x = vector_of(k, self, local);
    struct err err;

    EXPECT(comm_all_reduce(c, local, x, FLOATS, TENSOR_F32, COMM_SUM, &err) == 0, "%s", err.text);
    EXPECT(x[0] == (float)comm_world(c), "the sum is %g", (double)x[0]);
}

/* Member 1 arrives late. Every other rank has waited for it, directly or for a member that did. */
static void late_rank(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct comm_wait w[CAST_MAX];
    uint64_t late = 0, slow = 0, begin_ns, own_ns;
    int others = 0;

    fill(k, self, local);
    if (self == 1) { /* late after all others have begun */
        for (uint32_t m = 0; m < k->n; m++)
            others += m != 1 ? k->members[m].n_devices : 0;
        cast_until(k, BEGUN, others);
        wait_pass_ms(late_ms);
    } else {
        atomic_fetch_add(&k->stage->number[BEGUN], 1);
    }
    begin_ns = clock_ns();
    reduce_all(k, c, self, local);
    own_ns = clock_ns() - begin_ns;
    comm_read_waits(c, local, w);
    for (uint32_t m = 0; m < k->n; m++) {
        late += w[m].late_ns;
        slow += w[m].slow_ns;
    }
    if (self == 1) {
        EXPECT(late + slow <= own_ns, "the late member waited %llu ns before its call",
               (unsigned long long)(late + slow - own_ns));
        return;
    }
    EXPECT(late >= late_ms * NS / 4, "member %u waited %llu ns", self, (unsigned long long)late);
    EXPECT(self != 0 || w[1].late_ns >= late_ms * NS / 4, "member 0 waited %llu ns for member 1",
           (unsigned long long)w[1].late_ns);
    EXPECT(w[self].late_ns == 0 || k->members[self].n_devices > 1, "member %u waited for itself",
           self);
}

static void late_scene(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;

    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    cast_ranks(k, c, self, late_rank);
    comm_close(c);
}

/* On a busy machine another member may be later than member 1: the scene is repeated with longer delays until it succeeds. With
 * the longest it must succeed. */
static void late_member_is_counted_over_tcp_and_shared_memory(void **state)
{
    static const char *const layouts[] = { "A1 B1", "A1 A1", "A1 B1 C1", "A1 B1 C1 D1", "A2 A2" };
    struct cast k;
    bool well;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        for (late_ms = LATE_MS, well = false; !well; late_ms *= 10) {
            cast_init(&k, layouts[i], true, FLOATS * sizeof(float));
            cast_start(&k, late_scene);
            well = cast_all_succeeded(&k);
            cast_fini(&k);
            assert_true(well || late_ms < LONGEST_MS);
        }
    }
}

/* Each send of member 1 is delayed, so its messages arrive in pieces (under TLS in smaller ones). */
static void slow_rank(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    struct comm_wait w[CAST_MAX];

    fill(k, self, local);
    reduce_all(k, c, self, local);
    comm_read_waits(c, local, w);
    if (self != 0)
        return;
    EXPECT(w[1].slow_ns >= SENDS_MS * NS && w[1].slow_ns > w[1].late_ns,
           "slow %llu ns, late %llu ns", (unsigned long long)w[1].slow_ns,
           (unsigned long long)w[1].late_ns);
    EXPECT(w[1].slow_bytes > FLOATS && w[1].slow_bytes <= 2 * sizeof(float) * FLOATS, "%llu bytes",
           (unsigned long long)w[1].slow_bytes);
}

static void slow_scene(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    char fault[64];
    struct err err;

    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    snprintf(fault, sizeof(fault), "comm.send=delay:%d@2+",
             cast_encrypts ? SENDS_MS / 16 : SENDS_MS);
    EXPECT(self != 1 || fault_arm(fault, &err) == 0, "%s", err.text);
    cast_ranks(k, c, self, slow_rank);
    fault_arm(NULL, NULL);
    comm_close(c);
}

static void link_whose_messages_trickle_is_counted_as_slow(void **state)
{
    struct cast k;

    (void)state;
    cast_init(&k, "A1 B1", true, FLOATS * sizeof(float));
    cast_play(&k, slow_scene);
    cast_fini(&k);
}

static void alone_scene(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm_wait w[CAST_MAX];
    struct comm *c = NULL;
    struct err err;

    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    fill(k, self, 0);
    cast_ranks(k, c, self, reduce_all);
    comm_read_waits(c, 0, w);
    EXPECT(w[0].late_ns == 0 && w[0].slow_ns == 0 && w[0].slow_bytes == 0, "a wait without a peer");
    comm_close(c);
}

static void rank_without_peers_has_no_waits(void **state)
{
    struct cast k;

    (void)state;
    cast_init(&k, "A1", true, FLOATS * sizeof(float));
    cast_play(&k, alone_scene);
    cast_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_member_is_counted_over_tcp_and_shared_memory),
        cmocka_unit_test(link_whose_messages_trickle_is_counted_as_slow),
        cmocka_unit_test(rank_without_peers_has_no_waits),
    };
    int failed;

    failed = cmocka_run_group_tests_name("comm/waits", tests, NULL, NULL);
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/waits under TLS", tests, NULL, NULL);
}
