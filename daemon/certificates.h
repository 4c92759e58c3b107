/* certificates.h - watches the certificates of a running task.
 *
 * The thread "reads the certificates" exists if they come from files. It reads the files again each
 * second, so that the loop never waits for a file system. A read may hang for ever: then the thread is
 * detached at the close, owns the memory that it uses, and ends with the process.
 * Threads: all functions run on the loop's thread. */
#ifndef DAEMON_CERTIFICATES_H
#define DAEMON_CERTIFICATES_H

struct certificates;
struct err;
struct metrics;
struct tls;

/* Starts to watch the certificates of `tls`, of which the result holds a reference. The thread logs
 * new certificates, and once an hour that the new ones are invalid. Certificates from files get a metric
 * with the end of their validity in `m`, which is borrowed. On success the caller owns *out and
 * frees it with certificates_unwatch(). Errors: ERR_NOMEM, ERR_IO. */
int certificates_watch(struct tls *tls, struct metrics *m, struct certificates **out,
                       struct err *err);
/* Logs, each once an hour, that a file has not been read for some seconds, and that the certificate
 * in use ends within a week, and updates the metric. Does not block. Called every second. NULL is allowed. */
void certificates_check(struct certificates *c);
/* Waits at most 100 ms for the thread. NULL is allowed. */
void certificates_unwatch(struct certificates *c);

#endif
