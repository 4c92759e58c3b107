/* security.h - who may talk to this task: the token of the cluster and the certificates.
 *
 * - A folder with tls.crt, tls.key and ca.crt (the names of a Kubernetes Secret of type
 *   kubernetes.io/tls): mutual TLS with these certificates. A token is then needed to change the
 *   job.
 * - A token alone: mutual TLS with certificates that follow from the token, which is never sent.
 * - Neither: clear text.
 *
 * certificates.h reads the files of a running task again. Threads: the one that starts the process. */
#ifndef DAEMON_SECURITY_H
#define DAEMON_SECURITY_H

struct err;
struct tls;

enum { SECURITY_TOKEN_BYTES = 256, SECURITY_TOKEN_MIN = 16 };

struct security {
    char token[SECURITY_TOKEN_BYTES]; /* "": none */
    struct tls *tls;                  /* owned; NULL: clear text */
};

struct security_opts {
    const char *token_file; /* NULL: the environment variable TRAINERD_TOKEN */
    const char *folder;     /* with certificates; NULL: the environment variable TRAINERD_TLS */
    const char *host;       /* of this task in the cluster; NULL: a client */
    const char *address;    /* of a client: the task that it calls, which may be one of `trainerctl local`; NULL: none */
};

/* On success the caller calls security_close(). Errors: ERR_INPUT (the token is too short or has
 * characters that are not printable, a file is invalid), ERR_NOENT, ERR_IO, ERR_NOMEM. */
int security_open(const struct security_opts *opts, struct security *out, struct err *err);

/* Reads only the token; writes "" if the task has no token. Errors: those of security_open(). */
int security_read_token(const char *token_file, char out[SECURITY_TOKEN_BYTES], struct err *err);

void security_close(struct security *s);

#endif
