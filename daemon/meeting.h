/* meeting.h - rank 0 collects the addresses of all tasks where the environment has that of rank 0 alone
 * (conf/cluster_master.h).
 *
 * A task connects, states its rank and the address of its control port, and closes; rank 0 answers "wait"
 * until it knows all tasks, then with the list. Each task adds the address of its end of the connection, so
 * no name service is needed; that of rank 0 is the one at which the others reached it. Rank 0 answers until
 * meeting_close(), for tasks that start again.
 *
 *   request  trainerd 1 RANK SIZE ADDRESS NONCE MAC
 *   answer   wait - MAC | hosts ADDRESS,ADDRESS,... MAC | refused TEXT MAC | taken TEXT MAC
 *
 * MAC is HMAC-SHA256 of the text before it, preceded in an answer by the nonce; its key is the token of the
 * cluster. Without a token any process that reaches rank 0 may take part. */
#ifndef DAEMON_MEETING_H
#define DAEMON_MEETING_H

#include <stdint.h>

struct cluster_master;
struct err;
struct meeting;

struct meeting_opts { /* borrowed during the call */
    const struct cluster_master *master;
    const char *token; /* "": none */
    double seconds;    /* limit of the call: train.deadline_seconds */
};

/* Waits until rank 0 has the addresses of all tasks. On success the caller frees *hosts, the addresses by
 * rank with commas between them, and calls meeting_close(*out), which is NULL unless this is rank 0.
 * Errors: ERR_IO (tasks are missing, rank 0 does not answer, the port is in use), ERR_INPUT (WORLD_SIZE
 * differs), ERR_NOMEM. */
int meeting_join(const struct meeting_opts *opts, struct meeting **out, char **hosts,
                 struct err *err);
void meeting_close(struct meeting *m); /* NULL is allowed */

#endif
