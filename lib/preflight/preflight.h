/* preflight.h - measures every pair of tasks before training, and names the one that differs.
 *
 * Each task of a cluster runs preflight_run() on its host, on the addresses at which it will train. A
 * task listens on its control and data port, connects to all others until they are found or half of
 * the time is over, and then measures pair after pair in a fixed order (schedule.h), three times. Each direction
 * i -> j is measured by i: both ports, round trip, clock, rate, packets of full size, the file and the
 * lock of j in the storage. The results are exchanged, so every task reaches the same verdict
 * (judge.h); a row that cannot be received directly is requested from a third task.
 *
 * Files: run.c life cycle, dial.c connects, listen.c and serve.c answer, measure.c measures, collect.c exchanges
 * rows; pure: message.c, schedule.c, judge*.c, print.c, advice.c. Apart from a preflight, pair.c and racks.c
 * serve `trainerctl netcheck`, which measures running tasks.
 *
 * Control connections authenticate as those of training do (tls/tls.h), or are in clear text without a
 * token and certificates. A data connection is opened with a random ticket that was sent over the
 * control connection; its content is zeros in clear text. The process must ignore SIGPIPE.
 * Threads: preflight_run() blocks its caller; its own threads end before it returns, except those that
 * wait for a name or a file system that does not answer. */
#ifndef PREFLIGHT_PREFLIGHT_H
#define PREFLIGHT_PREFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "preflight/judge.h"
#include "preflight/types.h"

struct err;
struct port_list;
struct tls;

struct preflight_opts { /* all borrowed during the call */
    uint32_t self, world;               /* 2 <= world <= PREFLIGHT_WORLD_MAX */
    const struct preflight_task *tasks; /* [world] by rank */
    struct preflight_facts facts;       /* nonce, data_port, sync_us, listen_fault, storage_fault are set
                                           by the call */
    bool binds_any;                     /* listen on every interface */
    uint16_t data_first, data_last;     /* range of the data port; 0: the system chooses */
    const struct port_list *control_ports; /* no data ports; NULL: none */
    struct tls *tls;                    /* NULL: clear text */
    const char *storage;                /* directory that all tasks share; NULL: not tested */
    uint32_t limit_ms;                  /* of the whole call */
    bool yields;                        /* end without a verdict if a task already trains */
    /* Called several times a second on the thread of the caller; true ends the call. NULL: never. */
    bool (*is_stopped)(void *arg);
    void *arg;
};

struct preflight_result {
    struct preflight_row *rows; /* owned; [world] */
    uint32_t world;
    struct preflight_findings findings; /* owned */
    bool has_fault;
    bool has_yielded; /* opts.yields: another program answered at the address of a task; no findings */
};

/* On success the caller frees *out with preflight_free(). Errors: ERR_IO (a port is in use: a task runs
 * on this host), ERR_INPUT, ERR_CANCELED (is_stopped), ERR_NOMEM. */
int preflight_run(const struct preflight_opts *opts, struct preflight_result *out, struct err *err);
void preflight_free(struct preflight_result *r);

#endif
