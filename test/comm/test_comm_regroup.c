/* The state that a generation leaves behind, and the begin of the next one: arenas to which a
 * process might still write; members that are early, late or die while they connect. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/fault.h"
#include "comm/cast.h"
#include "comm/handshake_message.h"

enum { ELEMENTS = 100000, BYTES = ELEMENTS * 4, OLD = 0x5a, QUIET_MS = 20 };
enum { GO = 39, AT, READY, STOPPED, CLOSED, GOES_ON, WELL, DONE = 50 }; /* stage */

static void begin(struct cast *k, const char *layout)
{
    cast_init(k, layout, true, BYTES);
}

static void leave(struct cast *k, int which)
{
    atomic_fetch_add(&k->stage->number[which], 1);
}

static int reduce(struct cast *k, struct comm *c, uint32_t self, struct err *err)
{
    return comm_all_reduce(c, 0, k->arenas[self].base, ELEMENTS, TENSOR_F32, COMM_SUM, err);
}

static bool is_all(const void *base, size_t bytes, uint8_t value)
{
    const uint8_t *p = base;

    for (size_t i = 0; i < bytes; i++)
        if (p[i] != value)
            return false;
    return true;
}

/* Opens generation 2 without member `lost`. */
static struct comm *open_without(struct cast *k, uint32_t self, uint32_t lost)
{
    struct comm_opts o = cast_opts(k, self);
    struct group_member members[CAST_MAX];
    struct comm *c = NULL;
    struct err err;

    o.view.members = members;
    o.view.n_members = 0;
    o.view.generation = 2;
    for (uint32_t m = 0; m < k->n; m++)
        if (m != lost)
            members[o.view.n_members++] = k->members[m];
    o.view.self = self > lost ? self - 1 : self;
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    return c;
}

static void sum_of_ones(struct cast *k, struct comm *c, uint32_t self)
{
    float *data = k->arenas[self].base;
    struct err err;

    for (size_t i = 0; i < ELEMENTS; i++)
        data[i] = 1;
    EXPECT(reduce(k, c, self, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < ELEMENTS; i++)
        EXPECT(data[i] == (float)comm_world(c), "the sum at %zu is %g", i, (double)data[i]);
}

/* ---- arenas ---- */

/* The victim suspends itself in the middle of a reduction, and resumes after the others have formed
 * a new generation. */
static void be_stopped(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct err err;
    int rc;

    memset(k->arenas[self].base, 1, BYTES);
    EXPECT(fault_arm("comm.write=stop@1", &err) == 0, "%s", err.text);
    rc = reduce(k, c, self, &err);
    EXPECT(fault_fired(), "it was not stopped");
    EXPECT(rc == ERR_PEER && strstr(err.text, "worker 2: regroup") != NULL, "%d: %s", rc, err.text);
    EXPECT(comm_close_quiet(c, CAST_DEADLINE_MS), "all others have left");
    leave(k, GOES_ON);
}

static void *abort_when_stopped(void *arg)
{
    struct cast_thread *t = arg;

    cast_until(t->cast, STOPPED, 1);
    if (t->self == 2)
        comm_abort(t->c, "regroup");
    return NULL;
}

static void survive_a_stopped_one(struct cast *k, uint32_t self, uint32_t victim)
{
    struct comm *c = cast_open(k, self);
    struct cast_thread t = { .cast = k, .c = c, .self = self };
    struct device_mem old = k->arenas[self];
    struct err err;

    EXPECT(pthread_create(&t.id, NULL, abort_when_stopped, &t) == 0, "a thread");
    EXPECT(reduce(k, c, self, &err) < 0, "the stopped one is not missed");
    pthread_join(t.id, NULL);
    EXPECT(!comm_close_quiet(c, QUIET_MS), "a stopped process holds our arena");
    /* shows that the danger is real; without the test the arena would be unmapped */
    memset(old.base, OLD, BYTES);
    EXPECT(device_mem_open(&k->arenas[self], BYTES, true, &err) == 0, "%s", err.text);
    c = open_without(k, self, victim);
    sum_of_ones(k, c, self);
    leave(k, CLOSED);
    cast_until(k, GOES_ON, 1);
    EXPECT(!is_all(old.base, BYTES, OLD), "no process wrote into the abandoned arena");
    for (size_t i = 0; i < ELEMENTS; i++)
        EXPECT(((float *)k->arenas[self].base)[i] == 2, "element %zu has changed", i);
    sum_of_ones(k, c, self);
    EXPECT(comm_close_quiet(c, 0), "after calls that went well");
    device_mem_close(&old);
}

static void scene_stopped(struct cast *k, uint32_t self)
{
    uint32_t victim = (uint32_t)atomic_load(&k->stage->number[AT]);

    if (self == victim)
        be_stopped(k, self);
    else
        survive_a_stopped_one(k, self, victim);
}

static void peer_resumed_late_writes_only_into_abandoned_arenas(void **state)
{
    struct cast k;

    (void)state;
    /* the leader of the host, and another member */
    for (uint32_t victim = 0; victim < 2; victim++) {
        int status;

        begin(&k, "A1 A1 A1");
        atomic_store(&k.stage->number[AT], victim);
        cast_start(&k, scene_stopped);
        assert_int_equal(waitpid(k.pids[victim], &status, WUNTRACED), k.pids[victim]);
        assert_true(WIFSTOPPED(status));
        atomic_store(&k.stage->number[STOPPED], 1);
        cast_until(&k, CLOSED, 2);
        kill(k.pids[victim], SIGCONT);
        cast_join(&k);
        cast_fini(&k);
    }
}

static void scene_killed(struct cast *k, uint32_t self)
{
    uint32_t victim = (uint32_t)atomic_load(&k->stage->number[AT]);
    struct comm *c = cast_open(k, self);
    struct err err;
    int rc;

    if (self == victim)
        EXPECT(fault_arm("comm.write=kill@1", &err) == 0, "%s", err.text);
    rc = reduce(k, c, self, &err);
    EXPECT(rc == ERR_PEER, "%d: %s", rc, err.text);
    EXPECT(comm_close_quiet(c, CAST_DEADLINE_MS), "the dead cannot write");
    c = open_without(k, self, victim); /* on the same arena */
    sum_of_ones(k, c, self);
    comm_close(c);
}

static void dead_peer_arenas_stay_usable(void **state)
{
    struct cast k;

    (void)state;
    for (uint32_t victim = 0; victim < 2; victim++) {
        begin(&k, "A1 A1 A1");
        atomic_store(&k.stage->number[AT], victim);
        k.expect_signal[victim] = SIGKILL;
        cast_play(&k, scene_killed);
        cast_fini(&k);
    }
}

/* Member 2 computes for long and closes late; the others need not wait for that. */
static void scene_busy(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);
    struct err err;

    if (self == 2) {
        cast_until(k, READY, 1);
        wait_disturb(20000000);
        comm_abort(c, "enough");
        cast_until(k, CLOSED, 2);
    } else {
        leave(k, READY);
        EXPECT(reduce(k, c, self, &err) == ERR_PEER, "%s", err.text);
        EXPECT(comm_close_quiet(c, CAST_DEADLINE_MS), "member 2 is in no call"); /* it waits for this */
        leave(k, CLOSED);
        return;
    }
    comm_close(c);
}

static void peer_outside_a_call_releases_the_arenas_at_once(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 A1 A1");
    cast_play(&k, scene_busy);
    cast_fini(&k);
}

static void scene_in_order(struct cast *k, uint32_t self)
{
    struct comm *c = cast_open(k, self);

    sum_of_ones(k, c, self);
    if (self == 0)
        cast_until(k, CLOSED, 1); /* still open, with the tethers of the others */
    EXPECT(comm_close_quiet(c, 0), "all calls went well");
    leave(k, CLOSED);
}

static void successful_calls_close_does_not_wait(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 A1");
    cast_play(&k, scene_in_order);
    cast_fini(&k);
}

/* ---- connecting ---- */

/* The whole group opens one generation after the other. */
static void scene_rounds(struct cast *k, uint32_t self)
{
    for (uint64_t g = 1; g <= 8; g++) {
        struct comm_opts o = cast_opts(k, self);
        struct comm *c = NULL;
        struct err err;

        o.view.generation = g;
        leave(k, READY);
        cast_until(k, READY, g * k->n);
        EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
        EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
        comm_close(c);
    }
}

/* Counts the memfds in /proc/self/maps. */
static uint32_t mapped_memfds(void)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    uint32_t n = 0;

    EXPECT(f != NULL, "no /proc");
    while (fgets(line, sizeof(line), f) != NULL)
        n += strstr(line, "memfd:trainerd") != NULL;
    fclose(f);
    return n;
}

/* Member 1 has a new arena each time, as after a restart; member 2 never connects. */
static void scene_failing_rounds(struct cast *k, uint32_t self)
{
    enum { ROUNDS = 14 };
    struct err err;

    for (uint64_t g = 1; g <= ROUNDS && self != 2; g++) {
        struct comm_opts o = cast_opts(k, self);
        struct comm *c = NULL;

        o.view.generation = g;
        o.deadline_ms = 40 * SLOW;
        leave(k, READY);
        cast_until(k, READY, g * 2);
        EXPECT(cast_connect(&o, &c, &err) < 0, "member 2 has come");
        if (self == 1) {
            device_mem_close(&k->arenas[1]);
            EXPECT(device_mem_open(&k->arenas[1], BYTES, true, &err) == 0, "%s", err.text);
        }
    }
    if (self == 0)
        EXPECT(mapped_memfds() <= 6, "%u pieces of memory are mapped", mapped_memfds());
}

static void failing_connects_memory_of_dead_members_is_unmapped(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 A1 A1");
    cast_play(&k, scene_failing_rounds);
    cast_fini(&k);
}

static void generations_open_one_after_the_other(void **state)
{
    static const char *const groups[] = { "A1 A1 A1 A1", "A1 A1 B1 B1", "A1 B1 C1 D1" };
    struct cast k;

    (void)state;
    for (int i = 0; i < 3; i++) {
        begin(&k, groups[i]);
        cast_play(&k, scene_rounds);
        cast_fini(&k);
    }
}

/* Member 1 opened generation 2 long before member 0 ends generation 1. */
static void scene_early(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;
    int rc;

    if (self == 0) { /* waits for member 1 in generation 1, until it has requested generation 2 */
        o.deadline_ms = k->deadline_ms;
        rc = cast_connect(&o, &c, &err);
        EXPECT(rc == ERR_TIMEOUT, "%d: %s", rc, err.text);
        EXPECT(strstr(err.text, "wait for a later generation"), "%s", err.text);
    }
    o.view.generation = 2;
    o.deadline_ms = CAST_DEADLINE_MS;
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    comm_close(c);
}

static void early_member_waits_and_connects_at_once(void **state)
{
    struct cast k;

    (void)state;
    for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
        begin(&k, "A1 B1");
        k.deadline_ms = ms;
        cast_start(&k, scene_early);
        ms = cast_judge(&k);
    }
}

static int dial(const char *address)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    a.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    EXPECT(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0, "connect to %s", address);
    return fd;
}

/* 200 connections for a generation that has ended, half of them incomplete, are in the queue. */
static void scene_stale_queue(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct handshake_hello h = { .kind = HANDSHAKE_LINK, .from = 1, .generation = 1 };
    uint8_t bytes[HANDSHAKE_HELLO_BYTES];
    struct comm *c = NULL;
    struct err err;
    int fds[200];

    if (self == 2) {
        handshake_hello_write(&h, bytes);
        for (int i = 0; i < 200; i++) {
            fds[i] = dial(k->addresses[0]);
            EXPECT(send(fds[i], bytes, i % 2 ? sizeof(bytes) : 50, MSG_NOSIGNAL) > 0, "send");
        }
        leave(k, READY);
        cast_until(k, DONE, 2);
        for (int i = 1; i < 200; i += 2) { /* told that the generation has ended, and closed */
            uint8_t answer[HANDSHAKE_CHALLENGE_BYTES + 1];
            struct handshake_challenge ch;
            bool proven;

            EXPECT(recv(fds[i], answer, sizeof(answer), MSG_WAITALL) == HANDSHAKE_CHALLENGE_BYTES,
                   "no answer to call %d", i);
            EXPECT(handshake_challenge_read(answer, bytes, o.key, &ch, &proven) && proven &&
                       ch.verdict == HANDSHAKE_STALE && ch.generation == 7,
                   "answer %d", (int)ch.verdict);
        }
        return;
    }
    k->n = 2;
    cast_until(k, READY, 1);
    o = cast_opts(k, self);
    o.view.generation = 7;
    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    EXPECT(comm_barrier(c, 0, &err) == 0, "%s", err.text);
    leave(k, DONE);
    cast_until(k, DONE, 2);
    comm_close(c);
}

static void connections_of_an_ended_generation_delay_no_member(void **state)
{
    struct cast k;

    (void)state;
    begin(&k, "A1 B1 C1");
    cast_play(&k, scene_stale_queue);
    cast_fini(&k);
}

/* ---- death while connecting ---- */

static void scene_death(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;
    char spec[64];
    int rc;

    snprintf(spec, sizeof(spec), "%s=kill@%llu", k->stage->text[0],
             (unsigned long long)atomic_load(&k->stage->number[AT]));
    if (self == 1) {
        cast_until(k, GO, 1);
        EXPECT(fault_arm(spec, &err) == 0, "%s", err.text);
    }
    rc = cast_connect(&o, &c, &err);
    if (self == 1) { /* it is alive: the sweep is complete */
        EXPECT(fault_arm(NULL, &err) == 0 && rc == 0, "%d: %s", rc, err.text);
        leave(k, WELL);
    }
    if (rc == 0)
        rc = comm_barrier(c, 0, &err);
    if (self != 1 && atomic_load(&k->stage->number[WELL]) == 0) {
        bool late = strstr(err.text, "missing after") != NULL;

        EXPECT(rc < 0 && (late || strstr(err.text, "worker 1") != NULL), "%s: %d: %s", spec, rc,
               err.text);
        if (late) /* it had no connection yet that could have ended */
            leave(k, READY);
    }
    comm_close(c);
}

/* Kills member 1, which starts after the others wait for it, at its n-th passage of a fault point. Returns false if it did
 * not get there. *ms: as returned by cast_judge(). */
static bool kill_at(struct cast *k, const char *point, uint32_t n, uint64_t *ms, uint32_t *at_once)
{
    struct wait wait = WAIT_BEGIN("member 1 dies or connects");
    bool well = false, over = false, dead = false;

    k->deadline_ms = *ms;
    atomic_store(&k->stage->number[AT], n);
    snprintf(k->stage->text[0], sizeof(k->stage->text[0]), "%s", point);
    cast_start(k, scene_death);
    for (uint32_t m = 0; m < k->n; m++)
        cast_until_asleep(k, m);
    atomic_store(&k->stage->number[GO], 1);
    while (!well && !over) {
        siginfo_t info = { 0 };

        wait_poll(&wait);
        over = waitid(P_PID, (id_t)k->pids[1], &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
               info.si_pid != 0;
        dead = over && info.si_code == CLD_KILLED;
        well = atomic_load(&k->stage->number[WELL]) != 0;
    }
    k->expect_signal[1] = dead ? SIGKILL : 0;
    *ms = cast_judge(k);
    *at_once += *ms == 0 && dead && atomic_load(&k->stage->number[READY]) == 0;
    return dead;
}

static void death_while_connecting_is_named_at_once(void **state)
{
    static const char *const groups[] = { "A1 A1 A1", "A1 B1 C1", "A1 A1 B1 B1" };
    static const char *const points[] = { "*", "comm.settle", "comm.share" };
    struct cast k;

    (void)state;
    for (int i = 0; i < 9; i++) {
        uint32_t n, at_once;
        uint64_t first_ms = CAST_SHORT_MS;

        /* If the victim had not called any member yet, the others may wait until the deadline. On a busy machine the
           survivors may not have met yet: then the deadline is longer. */
        do {
            bool dead = true;

            for (n = at_once = 0; dead && n++ < 60;)
                for (uint64_t ms = first_ms; ms != 0; cast_fini(&k)) {
                    begin(&k, groups[i / 3]);
                    dead = kill_at(&k, points[i % 3], n, &ms, &at_once);
                }
            assert_true(!dead);
            first_ms *= 4;
        } while (i % 3 != 0 && at_once * 2 < n - 1 && first_ms <= CAST_LONG_MS);
        if (i % 3 != 0 && at_once * 2 < n - 1)
            fail_msg("%s, %s: of %u deaths %u were seen at once", groups[i / 3], points[i % 3],
                     n - 1, at_once);
    }
}

/* Releases the main thread, which is held at the end of comm_connect(), after member 0 has died and was
 * reaped. */
static void *release_after_death(void *arg)
{
    struct cast *k = arg;

    WAIT_UNTIL(fault_fired());
    leave(k, STOPPED);
    WAIT_UNTIL(kill(k->pids[0], 0) < 0);
    EXPECT(fault_arm(NULL, NULL) == 0, "disarm");
    return NULL;
}

/* A death between connecting and being connected is reported once: by comm_connect(), or by on_broken if it is seen
 * later. */
static void scene_dies_when_connected(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    pthread_t thread = 0;
    struct err err;
    int rc;

    if (self == 1) {
        EXPECT(fault_arm("comm.begin=hold", &err) == 0, "%s", err.text);
        EXPECT(pthread_create(&thread, NULL, release_after_death, k) == 0, "a thread");
    }
    rc = cast_connect(&o, &c, &err);
    if (self == 0) {
        cast_until(k, STOPPED, 1);
        kill(getpid(), SIGKILL);
    }
    pthread_join(thread, NULL);
    if (rc == 0) { /* the death was seen after comm_connect() */
        WAIT_UNTIL(atomic_load(&k->stage->told[1]) == 1);
    } else {
        EXPECT(rc == ERR_PEER && strstr(err.text, "worker 0") != NULL, "%d: %s", rc, err.text);
        EXPECT(atomic_load(&k->stage->told[1]) == 0, "on_broken was called twice");
    }
}

static void death_at_the_end_of_connecting_is_reported(void **state)
{
    static const char *const groups[] = { "A1 A1", "A1 B1" };
    struct cast k;

    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(&k, groups[i]);
        k.expect_signal[0] = SIGKILL;
        cast_play(&k, scene_dies_when_connected);
        cast_fini(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peer_resumed_late_writes_only_into_abandoned_arenas),
        cmocka_unit_test(dead_peer_arenas_stay_usable),
        cmocka_unit_test(peer_outside_a_call_releases_the_arenas_at_once),
        cmocka_unit_test(successful_calls_close_does_not_wait),
        cmocka_unit_test(failing_connects_memory_of_dead_members_is_unmapped),
        cmocka_unit_test(generations_open_one_after_the_other),
        cmocka_unit_test(early_member_waits_and_connects_at_once),
        cmocka_unit_test(connections_of_an_ended_generation_delay_no_member),
        cmocka_unit_test(death_while_connecting_is_named_at_once),
        cmocka_unit_test(death_at_the_end_of_connecting_is_reported),
    };
    int failed;

    signal(SIGPIPE, SIG_IGN); /* as the daemon: OpenSSL writes without MSG_NOSIGNAL */
    failed = cmocka_run_group_tests_name("comm/regroup", tests, NULL, NULL);
    cast_encrypts = true;
    return failed + cmocka_run_group_tests_name("comm/regroup under TLS", tests, NULL, NULL);
}
