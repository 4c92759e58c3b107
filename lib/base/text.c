#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* Longer words get no suggestion: the cost of the distance is quadratic in the length. */
enum { WORD_MAX = 64 };

/* Costs are doubled, so that half a step is an integer. */
enum { STEP = 2, HALF_STEP = 1 };

static unsigned char lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

static unsigned replace_cost(char a, char b)
{
    if (a == b)
        return 0;
    return lower(a) == lower(b) ? HALF_STEP : STEP;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Restricted Damerau-Levenshtein distance (no substring is edited twice). Element j of row i is the
 * cost of changing the first i letters of a to the first j letters of b. A transposition refers to
 * the row two before, so three rows are kept. */
static unsigned distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    unsigned rows[3][WORD_MAX + 1];

    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = STEP * (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i - 1) % 3];

        row[0] = STEP * (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            row[j] = least(above[j], row[j - 1]) + STEP;
            row[j] = least(row[j], above[j - 1] + replace_cost(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], rows[(i - 2) % 3][j - 2] + STEP);
        }
    }
    return rows[n_a % 3][n_b];
}

const char *text_nearest(const char *word, const char *const *candidates, size_t n)
{
    size_t n_word = strnlen(word, WORD_MAX + 1);
    unsigned best = STEP + STEP * (unsigned)n_word / 4;
    const char *nearest = NULL;

    if (n_word > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t n_candidate = strnlen(candidates[i], WORD_MAX + 1);
        unsigned d;

        if (n_candidate > WORD_MAX)
            continue;
        d = distance(word, n_word, candidates[i], n_candidate);
        if (d < best || (d == best && nearest == NULL)) {
            best = d;
            nearest = candidates[i];
        }
    }
    return nearest;
}

/* The well-formed sequences (Unicode 15, table 3-7): the range of the second byte for each range of
 * the first; every further byte is 80..BF. */
static const struct {
    uint8_t first_min, first_max, second_min, second_max, bytes;
} forms[] = {
    { 0x00, 0x7f, 0x00, 0x00, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
    { 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
    { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
};

size_t text_utf8_char(const char *s, size_t n)
{
    const uint8_t *u = (const uint8_t *)s;

    for (size_t i = 0; n > 0 && i < COUNT_OF(forms); i++) {
        if (u[0] < forms[i].first_min || u[0] > forms[i].first_max)
            continue;
        if (forms[i].bytes == 1)
            return 1;
        if (forms[i].bytes > n || u[1] < forms[i].second_min || u[1] > forms[i].second_max)
            return 0;
        for (size_t k = 2; k < forms[i].bytes; k++)
            if (u[k] < 0x80 || u[k] > 0xbf)
                return 0;
        return forms[i].bytes;
    }
    return 0;
}

size_t text_utf8_cut(const char *s, size_t n)
{
    /* Finds the start of the last character; keeps it if it is complete, or if it is not UTF-8. */
    for (size_t back = 1; back <= 4 && back <= n; back++) {
        uint8_t c = (uint8_t)s[n - back];

        if (c >= 0x80 && c <= 0xbf)
            continue;
        return c < 0xc2 || text_utf8_char(s + n - back, back) == back ? n : n - back;
    }
    return n;
}

bool text_is_utf8(const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t bytes = text_utf8_char(s + at, n - at);

        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

bool text_u64(const char *s, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;

    if (s[0] == '\0' || (s[0] == '0' && s[1] != '\0'))
        return false;
    for (; *s != '\0'; s++) {
        unsigned digit = (unsigned char)*s - (unsigned)'0';

        if (digit > 9 || digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return true;
}

bool text_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

void text_quote_pattern(const char *s, char *out)
{
    for (; *s != '\0'; s++) {
        if (strchr("\\*?[]{}", *s) != NULL)
            *out++ = '\\';
        *out++ = *s;
    }
    *out = '\0';
}

void text_unquote_pattern(char *s)
{
    char *to = s;

    for (; *s != '\0'; s++) {
        if (s[0] == '\\' && s[1] != '\0')
            s++;
        *to++ = *s;
    }
    *to = '\0';
}

void text_bytes(char *out, size_t n, uint64_t bytes)
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double value = (double)bytes;
    size_t unit = 0;

    if (bytes < 1024) {
        snprintf(out, n, "%" PRIu64 " B", bytes);
        return;
    }
    /* 1023.95 would print as "1024.0" of this unit; use the next unit. */
    for (value /= 1024; value >= 1023.95 && unit + 1 < COUNT_OF(units); unit++)
        value /= 1024;
    snprintf(out, n, "%.1f %s", value, units[unit]);
}

void text_duration(char *out, size_t n, uint64_t ns)
{
    static const struct {
        uint64_t seconds, minor_seconds;
        const char *major, *minor;
    } units[] = { { 86400, 3600, "d", "h" }, { 3600, 60, "h", "min" }, { 60, 1, "min", "s" } };
    uint64_t tenths = ns / 100000000u + (ns % 100000000u >= 50000000u);

    if (ns < 1000) {
        snprintf(out, n, "%" PRIu64 " ns", ns);
    } else if (ns < 999500) { /* a value that would round to 1000 uses the next unit */
        snprintf(out, n, "%" PRIu64 " us", (ns + 500) / 1000);
    } else if (ns < 999500000u) {
        snprintf(out, n, "%" PRIu64 " ms", (ns + 500000) / 1000000);
    } else if (tenths < 600) {
        snprintf(out, n, "%" PRIu64 ".%" PRIu64 " s", tenths / 10, tenths % 10);
    } else {
        uint64_t s = tenths / 10;
        size_t u = 0;

        while (s < units[u].seconds)
            u++;
        snprintf(out, n, "%" PRIu64 " %s %" PRIu64 " %s", s / units[u].seconds, units[u].major,
                 s % units[u].seconds / units[u].minor_seconds, units[u].minor);
    }
}

void text_rate(char *out, size_t n, double rate)
{
    double limit = 99.95; /* from here on no decimal is needed; below, one more for each factor of ten */
    int decimals = 0;

    while (rate > 0 && rate < limit && decimals < 9) {
        decimals++;
        limit = 9.995 / pow(10, decimals - 1);
    }
    snprintf(out, n, "%.*f", decimals, rate);
}
