/* lock.h - one running job for each checkpoint directory.
 *
 * The lease in checkpoint.directory (lib/ckpt/lease.h) names the job and the process that holds it.
 * A task that writes checkpoints holds it: a task without a cluster from before its first step, the
 * coordinator of a group from its first view. In a group with "elastic" the membership requests the
 * operations of the lease (is_driven); in every other task this file does.
 *
 * A second job in the directory waits while the lease of the first is neither renewed nor expired,
 * and ends when it sees that the first is alive. Until it holds the lease it writes nothing there.
 *
 * All functions run on the loop's thread, except lock_may_step() and lock_may_save(). */
#ifndef DAEMON_LOCK_H
#define DAEMON_LOCK_H

#include <stdbool.h>
#include <stdint.h>

struct cancel;
struct err;
struct group_member;
struct lease;
struct lease_state;
struct run;

struct lock {
    struct lease *lease; /* NULL: the job has no checkpoint directory */
    bool is_driven;      /* the membership requests the operations */
    bool is_wanted;      /* this task writes the checkpoints; not used if is_driven */
    bool is_mine, was_mine; /* now; at any time since is_wanted was set */
    bool has_state;      /* a state was reported; the next fields are valid */
    bool may_acquire;       /* no other job holds the lease */
    bool is_reachable;
    _Atomic bool is_blocked; /* another job holds the lease, or that is not known yet */
    bool has_conflict;   /* reported */
    /* a task without a cluster waited for another job: before its first step it looks whether that
     * one completed the job; then read and written by the replica's thread */
    bool checks_completion, is_completed;
    uint64_t token;      /* newest on the storage */
    uint64_t logged_token; /* of the last lease for which a message was logged */
    uint64_t ticket, answered, requested_ms; /* of the last request to acquire */
    uint32_t *members;   /* owned; [n_members] ranks of the group to record */
    uint32_t n_members;
    /* Called with every state. NULL: not used. */
    void (*on_state)(struct run *r, const struct lease_state *s);
    /* Another running job holds the lease; called once. */
    void (*on_conflict)(struct run *r, const char *text);
};

struct lock_opts {
    const char *name; /* of this task, for messages */
    const char *job;  /* see lease_opts.job */
    uint64_t incarnation;
    bool is_driven;
    void (*on_state)(struct run *r, const struct lease_state *s);
    void (*on_conflict)(struct run *r, const char *text);
};

/* Opens r->lock; does nothing if the job has no checkpoint directory. Errors: those of lease_open(). */
int lock_open(struct run *r, const struct lock_opts *opts, struct err *err);
/* This task writes the checkpoints from now on, for the group members [n]; copied. */
void lock_acquire(struct run *r, const struct group_member *members, uint32_t n);
/* Another task writes them: releases the lease. */
void lock_release(struct run *r);
/* Retries a request that failed. Called by each tick. */
void lock_retry(struct run *r);
/* Returns true while this task must not train yet: another job may hold the lease. False also if the
 * storage fails: training begins, and the saves are tried again. */
bool lock_must_wait(const struct run *r);
/* Releases the lease, and closes it. Called after training is closed. */
void lock_close(struct run *r);

/* Any thread: returns false while no step may be taken, because another job may hold the lease. */
bool lock_may_step(struct run *r);
/* The checkpoint writer's thread: waits for the lease for a limited time, then checks it. Errors:
 * ERR_TIMEOUT, those of lease_check(). */
int lock_may_save(struct run *r, struct err *err);

#endif
