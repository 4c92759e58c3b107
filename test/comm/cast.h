/* cast.h - a group of processes that run a scene together over real sockets and memory.
 *
 * cast_start() forks one process per member, each with an arena and a listener that were opened
 * before (so that all addresses are known), and the test waits for them with a limit. A scene runs
 * in each process. If an expectation fails (EXPECT), the process prints it and ends, which fails
 * the test. The processes share `stage`: numbers for each other and for the test. */
#ifndef TEST_COMM_CAST_H
#define TEST_COMM_CAST_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "comm/comm.h"
#include "device/device.h"
#include "harness/process.h"
#include "harness/wait.h"

/* "At once" means: because of an event. The deadline of the calls is above the guard, which would end
 * the processes before. */
enum { CAST_MAX = 16, CAST_DEADLINE_MS = 2 * WAIT_GUARD_MS };

struct cast;
typedef void cast_scene(struct cast *cast, uint32_t self);

struct cast_stage {
    _Atomic uint64_t number[64];
    _Atomic int pids[CAST_MAX]; /* of the processes, set by each */
    _Atomic uint32_t told[CAST_MAX]; /* on_broken: 1 + the culprit member */
    char why[CAST_MAX][256];         /* reason passed to on_broken */
    char text[CAST_MAX][256];        /* error text of a call */
};

static bool cast_encrypts; /* links over TCP are under TLS */

struct cast {
    uint32_t n;
    struct group_member members[CAST_MAX];
    struct comm_listener *listeners[CAST_MAX];
    struct device_mem arenas[CAST_MAX];
    pid_t pids[CAST_MAX];
    bool shared_memory;
    uint64_t deadline_ms;
    size_t arena_bytes;          /* per rank */
    int expect_signal[CAST_MAX]; /* signal that may end the process */
    uint32_t shares[64]; /* comm_opts.shares, if the first is not 0 */
    uint32_t groups;     /* comm_opts.groups */
    struct cast_stage *stage;
    uint8_t key[COMM_KEY_BYTES]; /* new for each test process: another process may get a port of
                                    this one */
    char locations[CAST_MAX][8];
    char names[CAST_MAX][16], hosts[CAST_MAX][2], addresses[CAST_MAX][80];
};

/* "A2@x": the rack of the member is x. "A2 B1": one member with two ranks on host A, one member with one rank on host B. "b3" is a ps
 * with three servers on host B. Workers and ps have the names "worker 0", "ps 0", ... */
static inline void cast_init(struct cast *k, const char *layout, bool shared_memory,
                             size_t arena_bytes)
{
    uint32_t n_ps = 0;
    struct err err;

    memset(k, 0, sizeof(*k));
    k->shared_memory = shared_memory;
    k->deadline_ms = CAST_DEADLINE_MS;
    k->arena_bytes = arena_bytes;
    snprintf((char *)k->key, sizeof(k->key), "key of %d", (int)getpid());
    k->stage =
        mmap(NULL, sizeof(*k->stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(k->stage != MAP_FAILED);
    for (const char *at = layout; *at != '\0'; k->n++) {
        uint32_t i = k->n, ranks = 0;
        bool is_ps = *at >= 'a';
        int used = 0;

        assert_int_equal(sscanf(at, "%c%u %n", &k->hosts[i][0], &ranks, &used), 2);
        at += used;
        if (*at == '@') {
            memcpy(k->locations[i], (char[]){ at[1], '/', k->hosts[i][0], '\0' }, 4);
            for (at += 2; *at == ' '; at++)
                continue;
        }
        assert_true(i < CAST_MAX);
        k->hosts[i][0] = (char)(is_ps ? k->hosts[i][0] - 'a' + 'A' : k->hosts[i][0]);
        snprintf(k->names[i], sizeof(k->names[i]), "%s %u", is_ps ? "ps" : "worker",
                 is_ps ? n_ps++ : i - n_ps);
        if (comm_listener_open("127.0.0.1", 0, 0, NULL, &k->listeners[i], &err) < 0)
            fail_msg("%s", err.text);
        snprintf(k->addresses[i], sizeof(k->addresses[i]), "%s",
                 comm_listener_address(k->listeners[i]));
        k->members[i] = (struct group_member){ .name = k->names[i],
                                               .host_key = k->hosts[i],
                                               .data_address = k->addresses[i],
                                               .location = k->locations[i],
                                               .n_devices = is_ps ? 0 : ranks,
                                               .n_servers = is_ps ? ranks : 0 };
        /* The sizes differ, as they do between unequal members. */
        if (device_mem_open(&k->arenas[i], arena_bytes * ranks + 4096 * i, true, &err) < 0)
            fail_msg("%s", err.text);
    }
}

static inline void cast_fini(struct cast *k)
{
    for (uint32_t i = 0; i < k->n; i++) {
        comm_listener_close(k->listeners[i]);
        device_mem_close(&k->arenas[i]);
    }
    munmap(k->stage, sizeof(*k->stage));
}

static inline void cast_start(struct cast *k, cast_scene *scene)
{
    for (uint32_t i = 0; i < k->n; i++) {
        k->pids[i] = process_fork();
        assert_true(k->pids[i] >= 0);
        if (k->pids[i] != 0)
            continue;
        for (uint32_t m = 0; m < k->n; m++)
            if (m != i) {
                comm_listener_close(k->listeners[m]);
                device_mem_close(&k->arenas[m]);
            }
        atomic_store(&k->stage->pids[i], getpid());
        scene(k, i);
        process_end();
    }
}

/* Returns true if all processes ended as expected; kills those that have not within the guard. */
static inline bool cast_all_succeeded(struct cast *k)
{
    struct wait wait = WAIT_BEGIN("a process ends");
    bool well = true;

    for (uint32_t i = 0; i < k->n; i++) {
        int status = 0;

        while (waitpid(k->pids[i], &status, WNOHANG) == 0) {
            if (wait_is_over(&wait))
                kill(k->pids[i], SIGKILL);
            wait_nap(&wait);
        }
        if (k->expect_signal[i] != 0
                ? !WIFSIGNALED(status) || WTERMSIG(status) != k->expect_signal[i]
                : status != 0) {
            print_message("%s ended with status 0x%x\n", k->names[i], (unsigned)status);
            well = false;
        }
    }
    return well;
}

static inline void cast_join(struct cast *k)
{
    assert_true(cast_all_succeeded(k));
}

static inline void cast_play(struct cast *k, cast_scene *scene)
{
    cast_start(k, scene);
    cast_join(k);
}

static inline void cast_on_broken(void *arg, const struct comm_loss *loss, const char *why)
{
    uint32_t member = loss->member;
    struct cast_stage *stage = *(struct cast_stage **)arg;
    uint32_t self = *(uint32_t *)((struct cast_stage **)arg + 1);
    uint32_t none = 0;

    snprintf(stage->why[self], sizeof(stage->why[self]), "%s", why);
    if (!atomic_compare_exchange_strong(&stage->told[self], &none, member + 1))
        atomic_store(&stage->told[self], 99); /* reported twice: no test expects this number */
}

/* For a scene that must wait for its deadline: the deadline is short, and a busy machine can miss
 * it without an error of the code, but not a long deadline. So the scene is repeated with longer
 * deadlines until it succeeds; with the longest it must succeed.
 *
 *     for (uint64_t ms = CAST_SHORT_MS; ms != 0; cast_fini(&k)) {
 *         begin(&k, "A1 B1");
 *         k.deadline_ms = ms;
 *         cast_start(&k, scene);
 *         ms = cast_judge(&k);
 *     } */
enum { CAST_SHORT_MS = 150 * SLOW, CAST_LONG_MS = 64 * CAST_SHORT_MS };

/* Waits for the processes. Returns the next deadline to try; 0: the scene succeeded. */
static inline uint64_t cast_judge(struct cast *k)
{
    uint64_t ms = k->deadline_ms;

    if (cast_all_succeeded(k))
        return 0;
    if (ms >= CAST_LONG_MS)
        fail_msg("failed with a deadline of %llu ms, too", (unsigned long long)ms);
    print_message("failed with a deadline of %llu ms: retry\n", (unsigned long long)ms);
    return ms * 8;
}

/* Called in a scene. */
static inline struct comm_opts cast_opts(struct cast *k, uint32_t self)
{
    static struct {
        struct cast_stage *stage;
        uint32_t self;
    } arg;
    struct comm_opts o = { .view.generation = 1,
                           .view.members = k->members,
                           .view.n_members = k->n,
                           .view.self = self,
                           .listener = k->listeners[self],
                           .arena = k->members[self].n_servers > 0 ? NULL : &k->arenas[self],
                           .shared_memory = k->shared_memory,
                           .encrypts = cast_encrypts,
                           .shares = k->shares[0] != 0 ? k->shares : NULL,
                           .groups = k->groups,
                           .deadline_ms = k->deadline_ms,
                           .on_broken = cast_on_broken,
                           .arg = &arg };

    arg.stage = k->stage;
    arg.self = self;
    memcpy(o.key, k->key, COMM_KEY_BYTES);
    return o;
}

/* Opens and connects; sets *out only on success. */
static inline int cast_connect(const struct comm_opts *o, struct comm **out, struct err *err)
{
    struct comm *c;
    int rc = comm_open(o, &c, err);

    if (rc < 0)
        return rc;
    rc = comm_connect(c, err);
    if (rc == 0)
        *out = c;
    else
        comm_close(c);
    return rc;
}

static inline struct comm *cast_open(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c = NULL;
    struct err err;

    EXPECT(cast_connect(&o, &c, &err) == 0, "%s", err.text);
    return c;
}

/* Waits until a number of the stage is at least n. */
static inline void cast_until(struct cast *k, int which, uint64_t n)
{
    WAIT_UNTIL(atomic_load(&k->stage->number[which]) >= n);
}

/* Waits until all threads of a member sleep: a process that is in a call waits in it for a peer. */
static inline void cast_until_asleep(struct cast *k, uint32_t member)
{
    WAIT_UNTIL(atomic_load(&k->stage->pids[member]) != 0 &&
               wait_is_asleep(atomic_load(&k->stage->pids[member]), 0));
}

/* on_broken is called by another thread. */
static inline void cast_until_told(struct cast *k, uint32_t self)
{
    WAIT_UNTIL(atomic_load(&k->stage->told[self]) != 0);
}

struct cast_thread {
    pthread_t id;
    struct cast *cast;
    struct comm *c;
    uint32_t self, local;
    void (*play)(struct cast *, struct comm *, uint32_t self, uint32_t local);
};

static inline void *cast_thread_run(void *arg)
{
    struct cast_thread *t = arg;

    t->play(t->cast, t->c, t->self, t->local);
    return NULL;
}

/* Runs a thread for every rank, or server, of this member. */
static inline void cast_ranks(struct cast *k, struct comm *c, uint32_t self,
                              void (*play)(struct cast *, struct comm *, uint32_t, uint32_t))
{
    struct cast_thread t[16];
    uint32_t n = k->members[self].n_devices + k->members[self].n_servers;

    for (uint32_t i = 0; i < n; i++) {
        t[i] = (struct cast_thread){ .cast = k, .c = c, .self = self, .local = i, .play = play };
        EXPECT(pthread_create(&t[i].id, NULL, cast_thread_run, &t[i]) == 0, "a thread");
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(t[i].id, NULL);
}

#endif
