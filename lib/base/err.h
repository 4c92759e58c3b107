/* err.h - an error is a code for the caller and a message for a person.
 *
 * A function that can fail returns 0 or a negative `enum err_code` and has a `struct err *` as its
 * last parameter. The text grows outward: each level prepends its own operation.
 * Threads: a struct err belongs to one thread at a time. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

enum err_code {
    ERR_NONE = 0,
    ERR_NOMEM = -1,       /* out of memory */
    ERR_IO = -2,          /* a file or the disk failed; a retry may succeed */
    ERR_NOENT = -3,       /* the named object does not exist */
    ERR_EXISTS = -4,      /* the object to create already exists */
    ERR_INPUT = -5,       /* configuration or data is invalid: do not retry (exit code 2) */
    ERR_CORRUPT = -6,     /* a checksum does not match, or stored data is malformed */
    ERR_UNSUPPORTED = -7, /* valid input that this build or version does not support */
    ERR_PEER = -8,        /* a peer died, is silent or sent invalid data: the generation ends */
    ERR_TIMEOUT = -9,     /* a deadline passed */
    ERR_CANCELED = -10,   /* this process requested the stop */
    ERR_REFUSED = -11,    /* a peer rejected this task permanently */
    ERR_DEVICE = -12,     /* a device or its library failed */
    ERR_FULL = -13,       /* a bounded resource is full (disk: ENOSPC, EDQUOT) */
    ERR_AUTH = -14,       /* the other side failed to authenticate */
    ERR_CHANGED = -15,    /* an input changed while in use; a restart reads the new content */
    ERR_PATH = -16,       /* the network path failed: a possibly live peer does not acknowledge */
};

enum { ERR_TEXT_BYTES = 2048 };

struct err {
    int code;
    char text[ERR_TEXT_BYTES]; /* outermost context first; truncated at the end if too long */
};

/* Each function returns the code, so that a caller can write `return err_set(...)`. `err` may be
 * NULL. */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_setv(struct err *err, int code, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Appends ": strerror(errnum)". The code is ERR_FULL for ENOSPC, EDQUOT and EFBIG, ERR_NOENT for
 * ENOENT and ENOTDIR, ERR_EXISTS for EEXIST, ERR_NOMEM for ENOMEM, else ERR_IO. */
int err_sys(struct err *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Prepends the context and ": " to the text; returns `code`. */
int err_wrap(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Returns the name of the enumerator, such as "ERR_IO"; never NULL. */
const char *err_name(int code);

#endif
