/* local_token.h - the token of a cluster that `trainerctl local` runs: without it another user of the machine could read
 * the job and stop it. A file that only the user can read has the token and the ports of the tasks, so that the
 * other commands of this user find it. The command holds a lock on the file while it runs: a file without a lock is left
 * over from a command that was killed. Threads: one at a time. */
#ifndef DAEMON_LOCAL_TOKEN_H
#define DAEMON_LOCAL_TOKEN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/security.h"

struct err;

/* Owned by the caller from local_token_publish() to local_token_remove(). */
struct local_token {
    char text[SECURITY_TOKEN_BYTES];
    char path[4200];
    int fd; /* holds the lock */
};

/* Makes a random token and its file, in $XDG_RUNTIME_DIR/trainerd, /tmp/trainerd-UID or /dev/shm/trainerd-UID.
 * Errors: ERR_REFUSED: another user may read the folder. ERR_NOMEM, ERR_IO, ERR_FULL and others: no other command
 * finds the token; text is empty if there is no token. */
int local_token_publish(const uint16_t *ports, uint32_t n, struct local_token *out,
                        struct err *err);
void local_token_remove(struct local_token *t);

/* Looks for the token of the running local cluster with a task at `address`. Returns false if the address is not of the
 * loopback interface, or no such cluster of this user runs. */
bool local_token_find(const char *address, char out[SECURITY_TOKEN_BYTES]);

#endif
