/* files.h - the coordinator has the parameter servers write the rows of their shards to the files of a checkpoint, or
 * read them from there.
 *
 * The coordinator sends each server the shards (SAVE, LOAD), then asks all of them for their progress until each is done
 * (POLL, DONE). A server works on another thread (background.h), so it answers at once, and no wait is longer than the
 * limit of a message. Ranks that wait for rows of the next step are told meanwhile that the wait is no failure.
 *
 * Each shard is written by one of its holders: the first one, a function of the view. Every holder has the same
 * bits, so the files do not depend on the choice.
 * Threads: that of the first replica of the coordinator. */
#ifndef PS_FILES_H
#define PS_FILES_H

#include <stdint.h>

#include "ps/message.h"

struct ckpt_row_files;
struct ckpt_sizes;
struct err;
struct ps_port;
struct ps_route;

/* At a step boundary: the rows of dynamic tables after step `step` in each shard. servers [PS_SHARDS]: as in struct
 * ps_save_opts. Writes to out [n_tables]; of other tables zeros. Errors: those of comm_send() and comm_receive(). */
int ps_count(const struct ps_port *port, const struct ps_route *route, uint64_t step,
             const uint32_t *servers, uint32_t n_tables, struct ckpt_sizes *out, struct err *err);

/* The name of a server (0, 1, ...) for messages, valid until the next call. */
typedef const char *ps_server_name_fn(void *arg, uint32_t server);

struct ps_save_opts {
    uint64_t step;     /* the version of the rows */
    uint64_t stall_ms; /* most time without progress of any server */
    struct ckpt_row_files *files;
    const uint32_t *servers; /* [PS_SHARDS] the server that writes the rows of a shard; it has all of them */
    ps_server_name_fn *name;
    void *arg;
};

/* Sets files->sums. The caller sends no COMMIT meanwhile, so the rows do not change. Errors: ERR_CANCELED: the save is
 * abandoned, or the connection to a server failed, so the generation ends; those of the storage, with the name of the
 * server: training goes on; ERR_TIMEOUT: no progress. */
int ps_save(const struct ps_port *port, const struct ps_route *route, const struct ps_save_opts *o,
            struct err *err);

struct ps_load_opts {
    uint64_t step;
    uint64_t stall_ms;
    const char *folder;                       /* path of the checkpoint */
    const uint64_t (*shards)[PS_SET_WORDS];   /* [n_servers] that each server reads; empty: none */
    int (*on_progress)(void *arg, struct err *err); /* after each poll; an error ends the load. NULL: not called */
    ps_server_name_fn *name;
    void *arg;
};

/* During a settlement, after BEGIN. *n_ready: READY messages that have arrived meanwhile. Errors: those of comm_send()
 * and comm_receive(); ERR_PEER: a server cannot read, or the bytes are not those of the manifest; the text has its name
 * and the reason, and the server leaves with that error; ERR_TIMEOUT: no progress. */
int ps_load(const struct ps_port *port, const struct ps_route *route, const struct ps_load_opts *o,
            uint32_t *n_ready, struct err *err);

#endif
