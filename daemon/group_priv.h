/* group_priv.h - the interface between the files of a task of a cluster. All functions run on the
 * loop's thread, except where a line names another thread.
 *
 *   group_lease.c  the lease (lock.h): between the membership and the threads of training that step
 *                  and save; failures of the storage
 *   group_final.c  ends the task when its leader reports that the job is complete
 *   group_open.c   opens and closes the data port, the lease and the membership
 *   group.c        actions of the membership become calls of training, and results of training
 *                  become events of the membership
 *
 * A file calls only files above it in this list. */
#ifndef DAEMON_GROUP_PRIV_H
#define DAEMON_GROUP_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/group_view.h"
#include "comm/comm.h"
#include "daemon/path_tests.h"
#include "daemon/run_priv.h"

struct balancer;
struct placer;
struct certificates;
struct net_test;
struct complete_check;

/* What the membership knows about the lease in r->lock. */
struct group_lease {
    bool is_known;         /* the storage has been read at least once */
    uint64_t ticket;       /* of the last request to the lease */
    uint64_t request;      /* of the LEASE action that caused it */
    uint64_t token;        /* for Status */
    char text[512];
    _Atomic bool is_needed; /* this task steps only while it holds the lease */
    /* Whether the absent tasks completed the job. The loop starts the check before a generation; then
       the thread of the first replica uses these fields. */
    struct complete_check *completion; /* owned; NULL: no check, or its result is known */
    uint64_t completion_due_ms;        /* steps wait until then for the result */
    bool is_completed;
    uint64_t storage_reported_ms; /* last report that the storage failed; 0: none */
};

/* The job is complete, and this task looks for the last checkpoint. */
struct group_final {
    bool is_open;
    uint64_t until_ms, next_ms;   /* the end of the wait; the next look */
    struct complete_check *check; /* owned; NULL: no look is running */
    char text[256];               /* the report of the leader */
    char found[8400];             /* the result of the last look */
};

struct group {
    struct run *run;
    struct rdzv *rdzv;
    struct comm_listener *listener;
    char data_address[320];
    uint64_t incarnation;
    uint64_t swept_ms; /* last sweep of the data port */
    struct certificates *certificates; /* owned; NULL: clear text */

    struct group_view view; /* of the last run_train(), in the order of base/group_order.h; in view_memory */
    struct arena view_memory;

    pthread_mutex_t lock; /* guards the next two */
    bool is_broken;
    struct comm_loss loss; /* of the generation that broke */

    struct path_tests tests;
    struct net_test *net_test; /* owned */
    struct balancer *balancer; /* owned */
    struct placer *placer;     /* owned */
    struct group_lease lease;
    struct group_final final;
};

/* ---- group_lease.c ---- */

/* Opens r->lock. If a group smaller than the cluster may train, the membership requests the
 * operations of the lease; otherwise the lease only locks the checkpoint directory.
 * Errors: those of lock_open(). */
int group_lease_open(struct run *r, struct err *err);
/* Perform a LEASE and a RELEASE action. */
void group_lease_acquire(struct run *r, const struct rdzv_action *a);
void group_lease_release(struct run *r, const struct rdzv_action *a);
/* The state of the node has changed. */
void group_lease_update(struct run *r);
/* Returns false if the membership requests the lease, and this task does not hold it. Any thread. */
bool group_lease_permits_save(const struct run *r);
/* train_generation.may_step, on the thread of the first replica; .may_save, on the thread of the
 * checkpoint writer. `arg` is the run. Only with a lease. */
bool group_may_step(void *arg);
/* Called before each generation. is_wanted: this task coordinates a part of the cluster, so the absent
 * tasks may have completed the job; group_may_step() then waits for the check, for a limited time. */
void group_check_completion(struct run *r, bool is_wanted);
int group_may_save(void *arg, struct err *err);
/* Reports a failure of the storage, again while it lasts: a leader then hands leadership over. */
void group_watch_storage(struct run *r, enum member_node_state state);

/* ---- group_final.c ---- */

/* The leader reports that the job is complete (`text`). Ends the task with 0: at once if it wrote the last
 * checkpoint itself or the job has none, else as soon as group_final_tick() has found that checkpoint. After
 * train.deadline_seconds without it the task ends with 138. */
void group_end_complete(struct run *r, const char *text);
void group_final_tick(struct run *r);

/* ---- group_open.c ---- */

/* Creates r->group and starts to form the group. `callbacks` has the callbacks of the membership;
 * their argument is the run. After a failure group_close() and group_free() free what was
 * opened. Errors: ERR_IO, ERR_INPUT, ERR_NOMEM. */
int group_open(struct run *r, const struct rdzv_opts *callbacks, struct err *err);
void group_close(struct run *r);
void group_free(struct run *r);

#endif
