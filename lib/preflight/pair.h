/* pair.h - measures one direction between two processes that run beside a job: round trip and rate.
 *
 * The receiver opens a port for one measurement (pair_serve()); its port and its random ticket travel
 * to the sender over another, authenticated connection. The sender (pair_measure()) presents the
 * ticket. The data is zeros in clear text.
 *
 *   sender                       receiver
 *   head with ticket       ->
 *                          <-    'k'
 *   'p'                    ->                   PAIR_PINGS times
 *                          <-    'p'
 *   zeros                  ->                   until the time is over; the rate is that of the
 *                                               acknowledged bytes. Then the connection is reset
 *
 * Threads: any. The process must ignore SIGPIPE. */
#ifndef PREFLIGHT_PAIR_H
#define PREFLIGHT_PAIR_H

#include <stdatomic.h>
#include <stdint.h>

#include "preflight/message.h"

struct err;
struct pair_server;
struct port_list;

enum {
    PAIR_PINGS = 16,
    PAIR_MS_MAX = 2000,           /* of a transfer */
    PAIR_BYTES_MAX = 256 << 20,   /* likewise */
    PAIR_WAIT_MS = 4000,          /* a sender that has not come by then comes no more */
};

/* Opens a port on `host` (NULL: every interface), the first free one of first..last that is
 * not in the list `others` (both 0: the system chooses such a port), and serves one sender on a thread of its own. On success the caller calls
 * pair_close(). Errors: ERR_IO, ERR_NOMEM. */
int pair_serve(const char *host, uint16_t first, uint16_t last, const struct port_list *others,
               struct pair_server **out, struct err *err);
uint16_t pair_port(const struct pair_server *s);
const uint8_t *pair_ticket(const struct pair_server *s); /* [MESSAGE_TICKET_BYTES] */
/* Ends the service within CONN_SLICE_MS. NULL is allowed. */
void pair_close(struct pair_server *s);

struct pair_result {
    uint32_t rtt_us; /* shortest round trip */
    uint64_t rate;   /* bytes/s that arrived */
};
/* Sends for at most `ms` and at most `bytes`. Ends within CONN_SLICE_MS after *stop becomes true.
 * Errors: ERR_PEER (with the reason), ERR_TIMEOUT, ERR_CANCELED, ERR_NOMEM. */
int pair_measure(const char *host, uint16_t port, const uint8_t ticket[MESSAGE_TICKET_BYTES],
                 uint32_t ms, uint64_t bytes, const atomic_bool *stop, struct pair_result *out,
                 struct err *err);

#endif
