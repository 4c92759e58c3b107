/* background.h - work of a server with files, on a thread of its own: the service thread answers meanwhile, also
 * if the storage hangs. The owner may leave at any time; the last user frees the object.
 *
 * While the work runs, the store must not change, except by the work.
 * Threads: start, status, stop: the owner's; enter, leave, progress: the thread of the work. */
#ifndef PS_BACKGROUND_H
#define PS_BACKGROUND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "ps/message.h"

struct ps_background; /* the first member of the object of the work */

struct ps_background_ops {
    const char *what; /* "writes rows", for thread_start() */
    int (*run)(struct ps_background *b, struct err *err);
    void (*free)(struct ps_background *b); /* frees the object */
};

struct ps_background {
    const struct ps_background_ops *ops;
    pthread_mutex_t lock; /* guards the fields below, and the use of the store */
    bool is_stopped;      /* the store must not be used */
    uint32_t n_users;     /* the owner and the thread */
    enum ps_done state;
    uint64_t progress; /* grows with each completed operation of the storage */
    struct err err;    /* PS_DONE_NONE */
};

/* Takes ownership of the object. Work that cannot begin has failed with `why`, or with that of thread_start().
 * why NULL: it can begin. */
void ps_background_start(struct ps_background *b, const struct ps_background_ops *ops,
                         const struct err *why);
/* The thread uses the store no more. It does nothing after the operation in progress. NULL is allowed. */
void ps_background_stop(struct ps_background *b);

struct ps_background_status {
    enum ps_done state;
    uint64_t progress;
    struct err err;
};
void ps_background_status(struct ps_background *b, struct ps_background_status *out);

/* Before and after each use of the store, which should be short. Errors: ERR_CANCELED: the owner has left; then
 * ps_background_leave() must not be called. */
int ps_background_enter(struct ps_background *b, struct err *err);
void ps_background_leave(struct ps_background *b);
void ps_background_progress(struct ps_background *b);

#endif
