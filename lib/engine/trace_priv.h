/* trace_priv.h - the object that trace.c (spans) and trace_write.c (file and sums) share. */
#ifndef ENGINE_TRACE_PRIV_H
#define ENGINE_TRACE_PRIV_H

#include <pthread.h>

#include "engine/trace_types.h"

struct trace {
    struct trace_opts opts;
    struct trace_row *rows; /* [TRACE_ROWS][n_replicas] */
    int fd;                 /* owned; -1 */
    uint64_t first;         /* step; 0: not started */
    uint32_t pid;
    char name[64];

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    uint32_t rows_left; /* replicas that have steps to trace */
    bool ended, written;
};

/* The rows that have what the sums are of: each step of a replica, and in it all that takes its
 * time. */
static inline const struct trace_row *trace_main_rows(const struct trace *t)
{
    return t->rows + (t->opts.on_gpus ? TRACE_WORK : TRACE_REPLICA) * t->opts.n_replicas;
}

#endif
