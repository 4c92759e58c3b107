#include "base/buf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/text.h"

/* Ensures room for `more` bytes and the NUL. */
static bool grow(struct buf *b, size_t more)
{
    size_t need, cap = b->cap > 0 ? b->cap : 64;
    char *data;

    if (b->failed)
        return false;
    if (more >= BUF_MAX - b->len) {
        b->failed = true;
        return false;
    }
    need = b->len + more + 1;
    if (need <= b->cap)
        return true;
    while (cap < need)
        cap *= 2;
    data = fault_hit("mem") ? NULL : realloc(b->data, cap);
    if (data == NULL) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_fini(struct buf *b)
{
    free(b->data);
    memset(b, 0, sizeof(*b));
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data != NULL)
        b->data[0] = '\0';
}

void buf_add(struct buf *b, const void *bytes, size_t n)
{
    if (!grow(b, n))
        return;
    if (n > 0)
        memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void buf_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    va_list again;
    size_t room;
    int n;

    if (!grow(b, 0))
        return;
    va_copy(again, ap);
    room = b->cap - b->len;
    n = vsnprintf(b->data + b->len, room, fmt, ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < room) {
        b->len += (size_t)n;
    } else if (grow(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    b->data[b->len] = '\0'; /* after a failure, removes the partial output */
    va_end(again);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

static void add_escaped(struct buf *b, char c)
{
    static const char letters[] = { '\b', 'b', '\f', 'f', '\n', 'n', '\r', 'r', '\t', 't' };

    for (size_t i = 0; i < sizeof(letters); i += 2) {
        if (c == letters[i]) {
            buf_printf(b, "\\%c", letters[i + 1]);
            return;
        }
    }
    if (c == '"' || c == '\\')
        buf_printf(b, "\\%c", c);
    else
        buf_printf(b, "\\u%04x", (unsigned char)c);
}

void buf_json(struct buf *b, const char *s)
{
    size_t n = strlen(s), plain = 0; /* start of the bytes not yet copied, which need no escape */

    buf_str(b, "\"");
    for (size_t at = 0; at < n;) {
        size_t bytes = text_utf8_char(s + at, n - at);

        if (bytes > 1 ||
            (bytes == 1 && (unsigned char)s[at] >= 0x20 && s[at] != '"' && s[at] != '\\')) {
            at += bytes;
            continue;
        }
        buf_add(b, s + plain, at - plain);
        if (bytes == 0)
            buf_str(b, "\xef\xbf\xbd"); /* U+FFFD */
        else
            add_escaped(b, s[at]);
        plain = ++at;
    }
    buf_add(b, s + plain, n - plain);
    buf_str(b, "\"");
}

/* Appends a number that printf wrote, with '.' instead of the locale's decimal separator. */
static void add_number(struct buf *b, const char *text)
{
    size_t head = strspn(text, "+-0123456789");
    size_t tail = strcspn(text + head, "+-0123456789eE");

    buf_add(b, text, head);
    if (tail > 0)
        buf_str(b, ".");
    buf_str(b, text + head + tail);
}

/* Every decimal of at most 15 digits (float: 6) is unchanged by a conversion to double and back to
 * 15 digits. The shortest representation is therefore found by trying 15, 16 and 17 digits; printf
 * removes trailing zeros. Subnormal numbers have fewer digits, so the search starts at one
 * digit. */
void buf_f64(struct buf *b, double v)
{
    char text[64];
    int digits = isnormal(v) ? 15 : 1;

    if (!isfinite(v)) {
        buf_str(b, "null");
        return;
    }
    if (v == 0) { /* a parser may read "-0" as an integer and lose the sign */
        buf_str(b, signbit(v) ? "-0.0" : "0");
        return;
    }
    do
        snprintf(text, sizeof(text), "%.*g", digits, v);
    while (strtod(text, NULL) != v && digits++ < 17);
    add_number(b, text);
}

void buf_f32(struct buf *b, float v)
{
    char text[64];
    int digits = isnormal(v) ? 6 : 1;

    if (!isfinite(v) || v == 0) {
        buf_f64(b, (double)v);
        return;
    }
    do
        snprintf(text, sizeof(text), "%.*g", digits, (double)v);
    while (strtof(text, NULL) != v && digits++ < 9);
    add_number(b, text);
}

char *buf_detach(struct buf *b)
{
    char *data;

    buf_add(b, "", 0); /* an empty buffer returns the empty string, not NULL */
    if (b->failed) {
        buf_fini(b);
        return NULL;
    }
    data = b->data;
    memset(b, 0, sizeof(*b));
    return data;
}
