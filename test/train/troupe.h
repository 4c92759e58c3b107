/* troupe.h - tasks as processes that train together, regroup, are killed and rejoin, as the test
 * requests.
 *
 * The test is the coordinator: it sends each task over a socket which generation begins (START),
 * and receives its result. The end of its socket shows that a task was killed; the test then sends
 * the others an abort, as the coordinator of a real group would. Tasks report steps and evaluations
 * in shared memory (`stage`). */
#ifndef TEST_TRAIN_TROUPE_H
#define TEST_TRAIN_TROUPE_H

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fault.h"
#include "harness/process.h"
#include "harness/wait.h"
#include "train/fixture.h"

enum { TASKS_MAX = 8, DEADLINE_MS = 8000 * SLOW };

enum order_kind { ORDER_START, ORDER_ABORT, ORDER_PAUSE, ORDER_SAVE, ORDER_QUIT };

struct order {
    enum order_kind kind;
    uint64_t generation, newest_step;
    uint32_t n_members, members[TASKS_MAX], self, newest_member;
    struct group_piece pieces[2 * TASKS_MAX]; /* of the lanes */
    uint32_t n_pieces;                        /* 0: equal shares */
    uint64_t wait_ms; /* SAVE */
    char fault[96]; /* armed before the generation begins; "": no fault */
};

enum news_kind { NEWS_ENDED, NEWS_SAVED };

struct news {
    enum news_kind kind;
    enum train_end end;
    uint64_t held;
    int code;
    char text[400];
};

struct told {
    double loss, norm;
    uint32_t times; /* over all processes of the task */
};

struct troupe_stage {
    struct task_stage {
        _Atomic uint64_t step, n_connected, n_saved, n_discarded;
        _Atomic uint64_t region; /* inode of the shared memory to which peers can write */
        struct told steps[STEPS + 1], evals[STEPS + 1];
        uint32_t logged[STEPS + 1], unlogged[STEPS + 1]; /* TRAIN_LOGGED with done 1, 0 */
        _Atomic uint32_t crc; /* of the state, when the task quit */
        char resumed[128];
        char notes[2048];
    } tasks[TASKS_MAX];
    uint64_t unlogged_steps; /* bit k: no task can write its log lines of step k */
};

struct troupe {
    uint32_t n;
    bool shared_memory;
    uint32_t devices; /* replicas of each task */
    /* called in the task before it opens; NULL: none */
    void (*set_up)(struct fixture *f, uint32_t task);
    struct troupe_stage *stage;
    char folder[64];
    uint64_t generation;
    uint32_t first; /* task that leads the next generation */
    struct group_piece pieces[2 * TASKS_MAX]; /* of the lanes in the generations that follow */
    uint32_t n_pieces;                        /* 0: equal shares */
    struct comm_listener *listeners[TASKS_MAX];
    char names[TASKS_MAX][16], hosts[TASKS_MAX][2], addresses[TASKS_MAX][80];
    struct actor {
        pid_t pid; /* 0: not running */
        int fd;
        bool running, stopped;
        uint64_t held;
        struct news last;
    } tasks[TASKS_MAX];
};

/* ---- in a task ---- */

struct player {
    struct troupe *troupe;
    struct fixture *f;
    struct task_stage *stage;
    uint32_t task;
    int fd;
};

static inline void player_event(void *arg, const struct train_event *e)
{
    struct player *p = arg;
    struct task_stage *s = p->stage;

    if (e->kind == TRAIN_STEP) {
        s->steps[e->step].loss = e->report->loss;
        s->steps[e->step].norm = e->report->grad_norm;
        s->steps[e->step].times++;
        s->step = e->step;
        if ((p->troupe->stage->unlogged_steps >> e->step & 1) != 0)
            train_set_unlogged(p->f->train, e->step);
    } else if (e->kind == TRAIN_EVAL) {
        s->evals[e->step].loss = e->eval->loss;
        s->evals[e->step].norm = e->eval->metrics[0];
        s->evals[e->step].times++;
    } else if (e->kind == TRAIN_LOGGED) {
        (e->done != 0 ? s->logged : s->unlogged)[e->step]++;
    } else if (e->kind == TRAIN_CONNECTED) {
        struct stat region;

        s->region = fstat(p->f->train->engine->memory.region.fd, &region) == 0 ? region.st_ino : 0;
        s->n_connected++;
    } else if (e->kind == TRAIN_RESUMED) {
        snprintf(s->resumed, sizeof(s->resumed), "%llu %s", (unsigned long long)e->step, e->text);
    } else if (e->kind == TRAIN_CHECKPOINT) {
        s->n_saved += e->ckpt->kind == CKPT_WRITTEN;
        s->n_discarded += e->ckpt->kind == CKPT_DISCARDED;
    } else if (e->kind == TRAIN_NOTE && strstr(e->text, "received") != NULL) {
        snprintf(s->notes, sizeof(s->notes), "%s", e->text);
    }
}

static inline void player_tell(struct player *p, const struct news *n)
{
    EXPECT(send(p->fd, n, sizeof(*n), MSG_NOSIGNAL) == sizeof(*n), "news");
}

static inline void player_end(void *arg, enum train_end end, uint64_t held, int code,
                              const char *text)
{
    struct player *p = arg;
    struct news n = { .kind = NEWS_ENDED, .end = end, .held = held, .code = code };

    EXPECT(held == train_held(p->f->train), "held");
    snprintf(n.text, sizeof(n.text), "%s", text);
    player_tell(p, &n);
}

static inline void player_start(struct player *p, const struct order *o)
{
    struct troupe *k = p->troupe;
    struct group_member members[TASKS_MAX];
    struct train_generation g = { .view.generation = o->generation,
                                  .view.members = members,
                                  .view.n_members = o->n_members,
                                  .view.self = o->self,
                                  .listener = o->n_members > 1 ? k->listeners[p->task] : NULL,
                                  .shared_memory = k->shared_memory,
                                  .deadline_ms = DEADLINE_MS,
                                  .view.newest_step = o->newest_step,
                                  .view.pieces = o->pieces,
                                  .view.n_pieces = o->n_pieces,
                                  .view.newest_member = o->newest_member };
    struct err err;

    for (uint32_t i = 0; i < o->n_members; i++) {
        uint32_t t = o->members[i];

        members[i] = (struct group_member){ .name = k->names[t],
                                            .host_key = k->hosts[t],
                                            .data_address = k->addresses[t],
                                            .n_devices = k->devices };
    }
    memcpy(g.key, k->folder, COMM_KEY_BYTES); /* unique: other tests run concurrently */
    EXPECT(fault_arm(o->fault[0] != '\0' ? o->fault : NULL, &err) == 0, "%s", err.text);
    EXPECT(train_start(p->f->train, &g, player_end, &err) == 0, "%s", err.text);
    memset(members, 0x5a, sizeof(members)); /* train_start() has copied the list */
}

static inline void player_save(struct player *p, uint64_t wait_ms)
{
    struct news n = { .kind = NEWS_SAVED };
    struct err err = { .text = "" };

    n.code = train_save(p->f->train, wait_ms, &err);
    snprintf(n.text, sizeof(n.text), "%s", err.text);
    player_tell(p, &n);
}

static inline void player_quit(struct player *p)
{
    struct fixture *f = p->f;
    struct err err;

    if (fixture_on_gpus() && train_held(f->train) > 0)
        EXPECT(train_sync(f->train, &err) == 0, "%s", err.text);
    p->stage->crc = crc32c(0, f->train->engine->memory.state, f->train->engine->memory.state_bytes);
    train_close(f->train);
    f->train = NULL;
    fixture_free(f);
    process_end();
}

static inline void play(struct troupe *k, uint32_t task, int fd)
{
    struct player p = { .troupe = k, .task = task, .fd = fd, .stage = &k->stage->tasks[task] };
    struct order o;

    setenv("NCCL_HOSTID", k->names[task], 1); /* all tasks use the same GPUs */
    p.f = fixture_new(k->devices, k->n * k->devices);
    p.f->opts.replicas = k->n * k->devices;
    p.f->opts.min_replicas = k->devices;
    p.f->opts.on_event = player_event;
    p.f->opts.arg = &p;
    if (k->set_up != NULL)
        k->set_up(p.f, task);
    fixture_open(p.f);
    while (recv(fd, &o, sizeof(o), 0) == sizeof(o)) {
        switch (o.kind) {
        case ORDER_START:
            player_start(&p, &o);
            break;
        case ORDER_ABORT:
            train_abort(p.f->train, "the coordinator says so");
            break;
        case ORDER_PAUSE:
            train_request(p.f->train, TRAIN_REQUEST_PAUSE);
            break;
        case ORDER_SAVE:
            player_save(&p, o.wait_ms);
            break;
        case ORDER_QUIT:
            player_quit(&p);
        }
    }
    _exit(2); /* the test process has ended */
}

/* ---- the coordinator ---- */

static inline void troupe_enter(struct troupe *k, uint32_t task)
{
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    k->tasks[task] = (struct actor){ .fd = pair[0], .pid = process_fork() };
    assert_true(k->tasks[task].pid >= 0);
    if (k->tasks[task].pid == 0) {
        close(pair[0]);
        for (uint32_t i = 0; i < k->n; i++) {
            if (i != task && k->tasks[i].pid != 0)
                /* otherwise the end of the task would not close the socket */
                close(k->tasks[i].fd);
            if (i != task)
                comm_listener_close(k->listeners[i]);
        }
        play(k, task, pair[1]);
    }
    close(pair[1]);
}

/* Starts the tasks. `hosts`: a letter for each task. */
static inline struct troupe *troupe_new(const char *hosts, uint32_t devices,
                                        void (*set_up)(struct fixture *f, uint32_t task))
{
    struct troupe *k = calloc(1, sizeof(*k));
    struct err err;

    assert_non_null(k);
    k->n = (uint32_t)strlen(hosts);
    snprintf(k->folder, sizeof(k->folder), "%s/trainerd-troupe-XXXXXX", in_memory());
    assert_non_null(mkdtemp(k->folder));
    fixture_root = k->folder;
    k->devices = devices;
    k->shared_memory = true;
    k->set_up = set_up;
    k->stage =
        mmap(NULL, sizeof(*k->stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(k->stage != MAP_FAILED);
    for (uint32_t i = 0; i < k->n; i++) {
        k->hosts[i][0] = hosts[i];
        snprintf(k->names[i], sizeof(k->names[i]), "worker %u", i);
        if (comm_listener_open("127.0.0.1", 0, 0, NULL, &k->listeners[i], &err) < 0)
            fail_msg("%s", err.text);
        snprintf(k->addresses[i], sizeof(k->addresses[i]), "%s",
                 comm_listener_address(k->listeners[i]));
    }
    for (uint32_t i = 0; i < k->n; i++)
        troupe_enter(k, i);
    return k;
}

static inline void troupe_order(struct troupe *k, uint32_t task, const struct order *o)
{
    (void)!send(k->tasks[task].fd, o, sizeof(*o), MSG_NOSIGNAL); /* the task may have been killed */
}

static inline void troupe_order_all(struct troupe *k, enum order_kind kind)
{
    struct order o = { .kind = kind };

    for (uint32_t i = 0; i < k->n; i++)
        if (k->tasks[i].pid != 0 && k->tasks[i].running)
            troupe_order(k, i, &o);
}

/* Waits for the process; checks that it was killed, or that it ended cleanly. */
static inline void troupe_reap(struct troupe *k, uint32_t task, bool killed)
{
    struct actor *a = &k->tasks[task];
    int status;

    assert_int_equal(waitpid(a->pid, &status, 0), a->pid);
    close(a->fd);
    *a = (struct actor){ 0 };
    if (killed ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0)
        fail_msg("%s ended with status 0x%x", k->names[task], (unsigned)status);
}

static inline void troupe_kill(struct troupe *k, uint32_t task)
{
    kill(k->tasks[task].pid, SIGKILL);
    troupe_reap(k, task, true);
}

/* Receives the results of all tasks of a generation except suspended ones; reaps killed tasks. */
static inline void troupe_wait(struct troupe *k)
{
    struct wait wait = WAIT_BEGIN("a generation ends");
    bool aborted = false;

    for (;;) {
        struct pollfd polls[TASKS_MAX];
        uint32_t n_running = 0;

        for (uint32_t i = 0; i < k->n; i++) {
            const struct actor *a = &k->tasks[i];
            bool listens = a->pid != 0 && a->running && !a->stopped;

            polls[i] = (struct pollfd){ .fd = listens ? a->fd : -1, .events = POLLIN };
            n_running += listens;
        }
        if (n_running == 0)
            return;
        if (wait_is_over(&wait)) {
            for (uint32_t i = 0; i < k->n; i++)
                if (k->tasks[i].pid != 0)
                    fprintf(stderr, "%s (%d): step %llu%s\n", k->names[i], (int)k->tasks[i].pid,
                            (unsigned long long)k->stage->tasks[i].step,
                            k->tasks[i].running ? ", still running" : "");
            fail_msg("a generation does not end");
        }
        if (poll(polls, k->n, 0) == 0)
            wait_nap(&wait);
        for (uint32_t i = 0; i < k->n; i++) {
            struct actor *a = &k->tasks[i];
            bool trouble = true;

            if (polls[i].fd < 0 || polls[i].revents == 0)
                continue;
            if (recv(a->fd, &a->last, sizeof(a->last), 0) == sizeof(a->last)) {
                a->running = false;
                a->held = a->last.held;
                trouble = a->last.end == TRAIN_FAILED;
            } else {
                troupe_reap(k, i, true);
            }
            if (trouble && !aborted)
                troupe_order_all(k, ORDER_ABORT);
            aborted = aborted || trouble;
        }
    }
}

/* Starts a generation of the running tasks except suspended ones, in order from `first`; sends them
 * the newest step. */
static inline void troupe_start_with(struct troupe *k, uint32_t faulty, const char *fault)
{
    struct order o = { .kind = ORDER_START, .generation = ++k->generation };

    memcpy(o.pieces, k->pieces, sizeof(o.pieces));
    o.n_pieces = k->n_pieces;
    for (uint32_t at = 0; at < k->n; at++) {
        uint32_t i = (k->first + at) % k->n;
        const struct actor *a = &k->tasks[i];

        if (a->pid == 0 || a->stopped)
            continue;
        if (a->held > o.newest_step) {
            o.newest_step = a->held;
            o.newest_member = o.n_members;
        }
        o.members[o.n_members++] = i;
    }
    for (uint32_t m = 0; m < o.n_members; m++) {
        o.self = m;
        snprintf(o.fault, sizeof(o.fault), "%s", o.members[m] == faulty && fault ? fault : "");
        k->tasks[o.members[m]].running = true;
        troupe_order(k, o.members[m], &o);
    }
}

static inline void troupe_start(struct troupe *k)
{
    troupe_start_with(k, TASKS_MAX, NULL);
}

/* Waits until all tasks have reported a step. */
static inline void troupe_until(struct troupe *k, uint64_t step)
{
    for (uint32_t i = 0; i < k->n; i++)
        WAIT_UNTIL(!k->tasks[i].running || k->tasks[i].stopped || k->stage->tasks[i].step >= step);
}

/* Waits until a number on the stage is at least `least`. */
static inline void troupe_until_told(const _Atomic uint64_t *number, uint64_t least)
{
    WAIT_UNTIL(*number >= least);
}

static inline void troupe_pause(struct troupe *k, uint32_t task)
{
    struct order o = { .kind = ORDER_PAUSE };

    troupe_order(k, task, &o);
    troupe_wait(k);
}

/* Runs generations until the job is complete. Returns their number. */
static inline uint32_t troupe_to_the_end(struct troupe *k)
{
    for (uint32_t n = 1; n < 20; n++) {
        bool complete = true;

        troupe_start(k);
        troupe_wait(k);
        for (uint32_t i = 0; i < k->n; i++)
            complete = complete && (k->tasks[i].pid == 0 || k->tasks[i].stopped ||
                                    k->tasks[i].last.end == TRAIN_COMPLETE);
        if (complete)
            return n;
    }
    fail_msg("20 generations, and the job is not complete");
    return 0;
}

/* Waits until a fault has suspended a task; from then on the test does not wait for it. */
static inline void troupe_until_stopped(struct troupe *k, uint32_t task)
{
    int status;

    assert_int_equal(waitpid(k->tasks[task].pid, &status, WUNTRACED), k->tasks[task].pid);
    assert_true(WIFSTOPPED(status));
    k->tasks[task].stopped = true;
}

/* Calls train_save() on an idle task. */
static inline struct news troupe_save(struct troupe *k, uint32_t task, uint64_t wait_ms)
{
    struct order o = { .kind = ORDER_SAVE, .wait_ms = wait_ms };
    struct news n;

    troupe_order(k, task, &o);
    assert_int_equal(recv(k->tasks[task].fd, &n, sizeof(n), 0), sizeof(n));
    assert_int_equal(n.kind, NEWS_SAVED);
    return n;
}

/* Ends all tasks and checks that they exit cleanly. */
static inline void troupe_quit(struct troupe *k)
{
    struct order o = { .kind = ORDER_QUIT };

    for (uint32_t i = 0; i < k->n; i++)
        if (k->tasks[i].pid != 0 && !k->tasks[i].stopped) {
            troupe_order(k, i, &o);
            troupe_reap(k, i, false);
        }
}

static inline void troupe_free(struct troupe *k)
{
    struct err err;

    troupe_quit(k);
    for (uint32_t i = 0; i < k->n; i++) {
        if (k->tasks[i].pid != 0)
            troupe_kill(k, i);
        comm_listener_close(k->listeners[i]);
    }
    assert_int_equal(fs_remove_tree(k->folder, &err), 0);
    fixture_root = in_memory();
    munmap(k->stage, sizeof(*k->stage));
    free(k);
}

#endif
