/* err.h - an error is a code for the caller and a story for a person.
 *
 * A function that can fail returns 0 or a negative `enum err_code` and takes `struct err *`
 * last. The text grows outward: each level puts in front what *it* was doing.
 * Threads: a struct err belongs to one thread at a time. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

enum err_code {
    ERR_NONE = 0,
    ERR_NOMEM = -1,       /* out of memory */
    ERR_IO = -2,          /* the disk or a file failed; may be worth a retry */
    ERR_NOENT = -3,       /* what was named does not exist */
    ERR_EXISTS = -4,      /* it is there already */
    ERR_INPUT = -5,       /* configuration or data is wrong: do not retry (exit code 2) */
    ERR_CORRUPT = -6,     /* a checksum or a format does not hold */
    ERR_UNSUPPORTED = -7, /* a legal input that this build or version cannot do */
    ERR_PEER = -8,        /* a peer died, is silent or sent nonsense; this generation is over */
    ERR_TIMEOUT = -9,     /* a deadline passed */
    ERR_CANCELED = -10,   /* somebody here asked to stop */
    ERR_REFUSED = -11,    /* a peer refused us, for good */
    ERR_DEVICE = -12,     /* a device or its library failed */
    ERR_FULL = -13,       /* a bounded thing is full (disk: ENOSPC, EDQUOT) */
    ERR_AUTH = -14,       /* the other side could not prove who it is */
    ERR_CHANGED = -15,    /* an input changed while it was in use: a new start reads it anew */
    ERR_PATH = -16,       /* a peer does not acknowledge what is sent to it, though it may live: the network */
};

enum { ERR_TEXT_BYTES = 2048 };

struct err {
    int code;
    char text[ERR_TEXT_BYTES]; /* outermost context first; cut at the end if too long */
};

/* Each returns the code, so that `return err_set(...)` is one thought. `err` may be NULL. */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_setv(struct err *err, int code, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Adds ": strerror(errnum)". The code is ERR_FULL for ENOSPC, EDQUOT and EFBIG, ERR_NOENT for
 * ENOENT and ENOTDIR, ERR_EXISTS for EEXIST, ERR_NOMEM for ENOMEM, else ERR_IO. */
int err_sys(struct err *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts context and ": " before the story; returns `code`. */
int err_wrap(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* "ERR_IO" and so on; never NULL. */
const char *err_name(int code);

#endif
