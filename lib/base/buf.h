/* buf.h - a growing byte buffer, also used as a string builder.
 *
 * After the first addition, data[len] is always NUL. The buffer never exceeds BUF_MAX. An addition
 * that fails (out of memory, BUF_MAX) sets `failed`, which the caller checks once at the end.
 * Threads: one at a time. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUF_MAX ((size_t)1 << 32)

struct buf {
    char *data; /* owned; NULL while empty */
    size_t len; /* bytes used, without the NUL */
    size_t cap; /* bytes allocated */
    bool failed; /* an addition failed; all later additions are ignored */
};

void buf_fini(struct buf *b);  /* frees; the struct is empty and usable again */
void buf_reset(struct buf *b); /* len = 0, memory kept */
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* Appends `s` as a JSON string with quotes: escapes control characters, quotes and backslashes, and
 * replaces each byte that is not valid UTF-8 by U+FFFD. */
void buf_json(struct buf *b, const char *s);
/* Appends the shortest decimal that parses to the same value; null (JSON) for NaN and
 * infinities. */
void buf_f64(struct buf *b, double v);
void buf_f32(struct buf *b, float v);
/* Returns the string, which the caller frees with free(), and empties the buffer. NULL: an addition
 * failed. */
char *buf_detach(struct buf *b);

#endif
