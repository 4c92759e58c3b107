/* buf.h - a growing byte buffer, also used as a string builder.
 *
 * Always NUL-terminated behind `len` once anything was added. Growth stops at BUF_MAX; running
 * out of memory is remembered in `failed`, checked once at the end. Threads: one at a time. */
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
    size_t cap;
    bool failed; /* an addition was lost: out of memory */
};

void buf_fini(struct buf *b);  /* frees; the struct is empty and usable again */
void buf_reset(struct buf *b); /* len = 0, memory kept */
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
/* A JSON string with quotes: escapes controls, quotes, backslashes; a byte that is not UTF-8
 * becomes U+FFFD. */
void buf_json(struct buf *b, const char *s);
/* Shortest decimal that reads back as the same value; null for NaN and infinities (JSON). */
void buf_f64(struct buf *b, double v);
void buf_f32(struct buf *b, float v);
/* The string, owned by the caller (free()); NULL if anything failed. Empties the buffer. */
char *buf_take(struct buf *b);

#endif
