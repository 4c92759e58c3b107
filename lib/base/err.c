#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/errno_text.h"
#include "base/text.h"

struct code_name {
    int code;
    const char *name;
};

#define NAME(code_) { code_, #code_ }
static const struct code_name names[] = {
    NAME(ERR_NONE),    NAME(ERR_NOMEM),    NAME(ERR_IO),      NAME(ERR_NOENT),
    NAME(ERR_EXISTS),  NAME(ERR_INPUT),    NAME(ERR_CORRUPT), NAME(ERR_UNSUPPORTED),
    NAME(ERR_PEER),    NAME(ERR_TIMEOUT),  NAME(ERR_CANCELED), NAME(ERR_REFUSED),
    NAME(ERR_DEVICE),  NAME(ERR_FULL),     NAME(ERR_AUTH),    NAME(ERR_CHANGED),
    NAME(ERR_PATH),
};

/* An error text is one line, also where it has a value with line breaks. */
static void remove_controls(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = ' ';
}

/* Like vsnprintf, but truncates between characters, so that the text stays valid UTF-8. Returns the
 * length. */
__attribute__((format(printf, 2, 0))) static size_t format_text(char out[ERR_TEXT_BYTES],
                                                                const char *fmt, va_list ap)
{
    int n = vsnprintf(out, ERR_TEXT_BYTES, fmt, ap);
    size_t len;

    if (n < 0) { /* only a broken locale or format can do this */
        out[0] = '\0';
        return 0;
    }
    remove_controls(out);
    if (n < ERR_TEXT_BYTES)
        return (size_t)n;
    len = text_utf8_cut(out, ERR_TEXT_BYTES - 1);
    out[len] = '\0';
    return len;
}

/* Writes head + separator + tail to err->text. `tail` may be err->text itself. */
static void join(struct err *err, const char *head, size_t n_head, const char *separator,
                 const char *tail)
{
    char whole[ERR_TEXT_BYTES];
    size_t n_sep = strlen(separator), n_tail = strlen(tail), room = ERR_TEXT_BYTES - 1, at;

    memcpy(whole, head, n_head);
    at = n_head;
    if (n_sep > room - at)
        n_sep = room - at;
    memcpy(whole + at, separator, n_sep);
    at += n_sep;
    if (n_tail > room - at)
        n_tail = text_utf8_cut(tail, room - at);
    memcpy(whole + at, tail, n_tail);
    at += n_tail;
    whole[at] = '\0';
    memcpy(err->text, whole, at + 1);
}

int err_setv(struct err *err, int code, const char *fmt, va_list ap)
{
    char text[ERR_TEXT_BYTES]; /* the arguments may point into err->text */
    size_t n;

    CHECK(code < 0);
    if (err == NULL)
        return code;
    n = format_text(text, fmt, ap);
    memcpy(err->text, text, n + 1);
    err->code = code;
    return code;
}

int err_set(struct err *err, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_setv(err, code, fmt, ap);
    va_end(ap);
    return code;
}

static int code_of_errno(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ERR_FULL;
    case ENOENT:
    case ENOTDIR:
        return ERR_NOENT;
    case EEXIST:
        return ERR_EXISTS;
    case ENOMEM:
        return ERR_NOMEM;
    default:
        return ERR_IO;
    }
}

int err_sys(struct err *err, int errnum, const char *fmt, ...)
{
    int code = code_of_errno(errnum);
    char head[ERR_TEXT_BYTES];
    size_t n;
    va_list ap;

    if (err == NULL)
        return code;
    va_start(ap, fmt);
    n = format_text(head, fmt, ap);
    va_end(ap);
    join(err, head, n, ": ", errno_text(errnum));
    err->code = code;
    return code;
}

int err_wrap(struct err *err, int code, const char *fmt, ...)
{
    char head[ERR_TEXT_BYTES];
    size_t n;
    va_list ap;

    CHECK(code < 0);
    if (err == NULL)
        return code;
    va_start(ap, fmt);
    n = format_text(head, fmt, ap);
    va_end(ap);
    join(err, head, n, err->text[0] != '\0' ? ": " : "", err->text);
    err->code = code;
    return code;
}

const char *err_name(int code)
{
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (names[i].code == code)
            return names[i].name;
    return "unknown error code";
}
