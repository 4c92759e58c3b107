/* cluster_int.c - Python's int(), which TensorFlow applies to every index.
 *
 * A string may have white space around the number, a sign, single underscores between digits,
 * leading zeros, and the decimal digits of any script. A float is truncated towards zero. true is
 * 1. Where Python raises an exception, the functions return false. */
#include "conf/cluster_int.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/text.h"

enum { PYTHON_MAX_DIGITS = 4300 }; /* since Python 3.11, int() rejects more digits */

/* The code points of the digit 0 in every script (general category Nd) of Unicode 14, ascending. */
static const uint32_t zero_digits[] = {
    0x30,    0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,
    0xc66,   0xce6,   0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,
    0x1810,  0x1946,  0x19d0,  0x1a80,  0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,
    0xa8d0,  0xa900,  0xa9d0,  0xa9f0,  0xaa50,  0xabf0,  0xff10,  0x104a0, 0x10d30, 0x11066,
    0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0,
    0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2,
    0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
};

/* Returns the code point at *s, which is valid UTF-8, and advances *s; 0 at the end. */
static uint32_t next_char(const char **s)
{
    const unsigned char *p = (const unsigned char *)*s;
    uint32_t c = p[0];
    uint32_t more = c < 0xc0 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;

    if (c == 0)
        return 0;
    if (more > 0)
        c &= 0x3fu >> more;
    for (uint32_t i = 1; i <= more; i++)
        c = c << 6 | (p[i] & 0x3f);
    *s += more + 1;
    return c;
}

static bool is_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xd) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Returns the value of a decimal digit, 0 to 9; -1: not a digit. */
static int digit_value(uint32_t c)
{
    for (size_t i = 0; i < COUNT_OF(zero_digits); i++) {
        if (c >= zero_digits[i] && c <= zero_digits[i] + 9)
            return (int)(c - zero_digits[i]);
    }
    return -1;
}

static void skip_space(const char **s)
{
    for (const char *p = *s; is_space(next_char(&p));)
        *s = p;
}

bool cluster_python_int_text(const char *s, int64_t *out)
{
    int64_t value = 0;
    bool is_negative = false;
    bool after_digit = false;
    bool is_huge = false;
    uint32_t n_digits = 0;

    if (!text_is_utf8(s, strlen(s)))
        return false;
    skip_space(&s);
    if (*s == '+' || *s == '-')
        is_negative = *s++ == '-';
    for (;;) {
        const char *p = s;
        uint32_t c = next_char(&p);
        int digit = digit_value(c);

        if (digit < 0 && !(c == '_' && after_digit))
            break;
        after_digit = digit >= 0;
        if (after_digit && ++n_digits > PYTHON_MAX_DIGITS)
            return false;
        if (after_digit)
            is_huge |= __builtin_mul_overflow(value, 10, &value) ||
                       __builtin_add_overflow(value, digit, &value);
        s = p;
    }
    skip_space(&s);
    if (!after_digit || *s != '\0')
        return false;
    value = is_huge ? INT64_MAX : value;
    *out = is_negative ? -value : value;
    return true;
}

bool cluster_python_int(const struct json *doc, const cJSON *v, int64_t *out)
{
    const char *text;

    if (cJSON_IsBool(v)) {
        *out = cJSON_IsTrue(v);
        return true;
    }
    if (cJSON_IsString(v))
        return cluster_python_int_text(v->valuestring, out);
    if (!cJSON_IsNumber(v))
        return false;
    text = json_number_text(doc, v);
    if (text != NULL && strpbrk(text, ".eE") == NULL)
        return cluster_python_int_text(text, out);
    *out = v->valuedouble >= 0x1p62    ? INT64_MAX
           : v->valuedouble <= -0x1p62 ? -INT64_MAX
                                       : (int64_t)trunc(v->valuedouble);
    return true;
}
