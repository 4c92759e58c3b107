/* writer_priv.h - the object that writer.c (its owner's calls) and writer_thread.c share. Four
 * states:
 *
 *     state     user of the staging area    transitions
 *     IDLE      none                        ckpt_begin(): FILLING
 *     FILLING   the caller                  ckpt_hand_over(): WRITING
 *     WRITING   the thread                  saved: IDLE      failed: WAITING
 *                                           right to publish lost, or abandoned: IDLE
 *                                           failed, but rows are elsewhere: IDLE
 *     WAITING   none; the state in it       retry time reached, or a flush: WRITING
 *               could not be saved          ckpt_begin(): FILLING (a newer state replaces it)
 *
 * The storage may hang in WRITING indefinitely; the owner of the writer never waits without a
 * limit. */
#ifndef CKPT_WRITER_PRIV_H
#define CKPT_WRITER_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ckpt/ckpt_priv.h"
#include "ckpt/thread.h"

enum writer_state { WRITER_IDLE, WRITER_FILLING, WRITER_WRITING, WRITER_WAITING };

enum { WRITER_CAUSE_BYTES = 128 };

/* The callbacks of the owner of the writer. */
struct writer_owner {
    void (*on_event)(void *arg, const struct ckpt_event *e); /* NULL: not called */
    int (*may_publish)(void *arg, struct err *err);          /* NULL: always */
    int (*wait_snapshot)(void *arg, struct err *err);        /* NULL: not called */
    ckpt_write_rows_fn *write_rows; /* NULL: all rows are in the state. Called by the owner's thread */
    void *arg;
    pthread_mutex_t calling; /* held during a call by the thread */
    bool is_closed;          /* guarded by `calling`: no further calls */
};

/* The last error that was reported since a successful save. */
struct writer_reported {
    int code; /* 0: none */
    char cause[WRITER_CAUSE_BYTES];
};

/* The state in the staging area, from ckpt_hand_over() until it is saved, replaced or discarded. */
struct writer_pending {
    struct ckpt_meta meta;
    uint64_t handed_over_ns; /* clock_ns() of ckpt_hand_over() */
    uint64_t failures;       /* consecutive failures of this state */
    bool retry_now;          /* a retry is due now: a flush waits, or the save is abandoned */
    bool is_discarded;       /* the last state that was handed over was discarded */
    /* write_rows(): not yet; the thread waits for it; it runs; it has returned 0, or an error */
    enum { ROWS_PENDING, ROWS_READY, ROWS_RUNNING, ROWS_DONE, ROWS_FAILED } rows;
    struct ckpt_row_files *files; /* its argument; from ROWS_READY on */
    struct err rows_err;          /* ROWS_FAILED */
    struct err last;         /* the error of WRITER_WAITING, or the reason for the discard */
};

struct ckpt_writer {
    char *directory;             /* owned */
    struct ckpt_layouts layouts; /* owned */
    struct ckpt_tensor *tensors; /* owned, with the names; [n_model + n_slots]; NULL: no table is dynamic */
    uint32_t n_model, n_slots;
    struct ckpt_sizes *sizes; /* owned [n_sizes]; of the state in the staging area */
    uint32_t n_sizes;
    _Atomic uint32_t max_to_keep;
    uint64_t retry_ms, close_ms;
    struct writer_owner owner;
    char *staging; /* [state_bytes] */
    size_t state_bytes;
    bool owns_staging;

    /* used by the thread only */
    bool is_prepared; /* the directory exists, and leftovers are removed */
    struct writer_reported reported;

    struct ckpt_watch watch;   /* of the current save */
    struct ckpt_thread thread; /* its lock guards the fields below */
    enum writer_state state;
    struct writer_pending pending;
    uint32_t failed_saves; /* failures since a state was saved or discarded */
    bool closing;
};

/* ---- writer_thread.c ---- */
/* The thread: saves the states that are handed over, until the writer is closed. arg: the
 * writer. */
void *writer_run(void *arg);
/* Calls on_event() unless the writer is closed. Any thread; the lock is not held. */
void writer_send_event(struct ckpt_writer *w, const struct ckpt_event *e);
/* Called by the last user. */
void writer_free(struct ckpt_writer *w);

#endif
