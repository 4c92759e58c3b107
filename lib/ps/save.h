/* save.h - the coordinator has the parameter servers write the rows of their shards to the files of a checkpoint.
 *
 * The coordinator sends each server the shards that it writes, then asks all of them for their progress until each
 * has written and synced its rows. A server writes on another thread (saver.h), so it answers at once. Ranks that
 * wait for rows of the next step are told meanwhile that the wait is not a failure.
 *
 * Each shard is written by one of its holders: the first one, a function of the view. Every holder has the same
 * bits, so the files do not depend on the choice.
 * Threads: that of the first replica of the coordinator, while it sends no COMMIT: the rows do not change. */
#ifndef PS_SAVE_H
#define PS_SAVE_H

#include <stdint.h>

struct ckpt_row_files;
struct err;
struct ps_port;
struct ps_route;

struct ps_save_opts {
    uint64_t step;     /* the version of the rows */
    uint64_t stall_ms; /* most time without progress of any server */
    struct ckpt_row_files *files;
    /* The name of a server (0, 1, ...) for messages, valid until the next call. */
    const char *(*name)(void *arg, uint32_t server);
    void *arg;
};

/* Sets files->sums. Errors: ERR_CANCELED: the save is abandoned, or the connection to a server failed, so the
 * generation ends; those of the storage, with the name of the server: training goes on; ERR_TIMEOUT: no progress. */
int ps_save(const struct ps_port *port, const struct ps_route *route, const struct ps_save_opts *o,
            struct err *err);

/* Returns the server that writes a shard. */
uint32_t ps_save_server_of(const struct ps_route *route, uint32_t shard);

#endif
