/* json_scan.c - a strict scanner that builds a cJSON tree. It implements the grammar, the positions
 * and the limits itself and does not use cJSON's parser. */
#include "base/json_priv.h"

#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/map.h"
#include "base/text.h"

/* The position in the text that is being parsed. */
struct scan {
    struct json *doc;
    const char *at, *end;
    const char *line_start;
    uint32_t line;
    unsigned flags;
    uint32_t n_values;
    locale_t c_locale; /* for strtod_l: the decimal separator is '.' */
    struct err *err;
};

static int scan_value(struct scan *s, struct json_node *node, unsigned depth);

static uint32_t column_of(const struct scan *s, const char *at)
{
    return (uint32_t)(at - s->line_start) + 1;
}

__attribute__((format(printf, 3, 4))) static int bad(struct scan *s, const char *at,
                                                     const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_setv(s->err, ERR_INPUT, fmt, ap);
    va_end(ap);
    return err_wrap(s->err, ERR_INPUT, "%s:%" PRIu32 ":%" PRIu32, s->doc->name, s->line,
                    column_of(s, at));
}

static int no_memory(struct scan *s)
{
    return err_set(s->err, ERR_NOMEM, "%s: out of memory", s->doc->name);
}

/* Describes the text at s->at for a message. */
static const char *found(const struct scan *s, char out[32])
{
    size_t left = (size_t)(s->end - s->at), bytes = text_utf8_char(s->at, left);
    unsigned char c = left > 0 ? (unsigned char)*s->at : 0;

    if (left == 0)
        snprintf(out, 32, "the end of the text");
    else if (bytes == 0)
        snprintf(out, 32, "the byte 0x%02x (not UTF-8)", c);
    else if (c < 0x20 || c == 0x7f)
        snprintf(out, 32, "the control byte 0x%02x", c);
    else
        snprintf(out, 32, "'%.*s'", (int)bytes, s->at);
    return out;
}

static void skip_blanks(struct scan *s)
{
    for (; s->at < s->end; s->at++) {
        if (*s->at == '\n') {
            s->line++;
            s->line_start = s->at + 1;
        } else if (*s->at != ' ' && *s->at != '\t' && *s->at != '\r') {
            break;
        }
    }
}

static bool next_is(const struct scan *s, char c)
{
    return s->at < s->end && *s->at == c;
}

static bool next_starts(const struct scan *s, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(s->end - s->at) >= n && memcmp(s->at, word, n) == 0;
}

static bool looks_like_yaml_or_path(const struct scan *s)
{
    size_t n = (size_t)(s->end - s->at);
    const char *end = n > 0 ? memchr(s->at, '\n', n) : NULL;
    size_t line = end != NULL ? (size_t)(end - s->at) : n;

    if (next_starts(s, "---") || next_starts(s, "/") || next_starts(s, "./") ||
        next_starts(s, "~/"))
        return true;
    return line > 0 && (s->at[0] | 32) >= 'a' && (s->at[0] | 32) <= 'z' &&
           memchr(s->at, ':', line) != NULL;
}

/* Reports an unexpected token. For syntax that other formats allow, the message names the
 * remedy. */
static int bad_token(struct scan *s, const char *expected)
{
    static const struct {
        const char *start, *remedy;
    } common_mistakes[] = {
        { "//", "JSON has no comments: remove it" },
        { "/*", "JSON has no comments: remove it" },
        { "#", "JSON has no comments: remove it" },
        { "'{", "remove the quotes around the text" },
        { "'", "write strings in double quotes" },
        { "\"", "is a comma or a colon missing before it?" },
        { ",", "remove the extra comma" },
        { "NaN", "JSON has no NaN" },
        { "nan", "JSON has no NaN" },
        { "Infinity", "JSON has no infinity" },
        { "-Infinity", "JSON has no infinity" },
        { "inf", "JSON has no infinity" },
        { "True", "write true" },
        { "False", "write false" },
        { "None", "write null" },
        { "undefined", "write null" },
        { "+", "a positive number has no sign" },
        { ".", "a number starts with a digit: write 0.5, not .5" },
        { "\xfe\xff", "save the file as UTF-8, not as UTF-16" },
        { "\xff\xfe", "save the file as UTF-8, not as UTF-16" },
    };
    char what[32];

    found(s, what);
    for (size_t i = 0; i < COUNT_OF(common_mistakes); i++)
        if (next_starts(s, common_mistakes[i].start))
            return bad(s, s->at, "found %s, expected %s; %s", what, expected,
                       common_mistakes[i].remedy);
    if (s->line == 1 && s->at == s->line_start && looks_like_yaml_or_path(s))
        return bad(s, s->at,
                   "found %s, expected %s; is this YAML, or the path of a file? Expected JSON, "
                   "which begins with '{'",
                   what, expected);
    return bad(s, s->at, "found %s, expected %s", what, expected);
}

/* Returns the value of four hex digits at `at`; -1: not four hex digits. */
static int32_t hex4(const struct scan *s, const char *at)
{
    int32_t value = 0;

    if (s->end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static char *write_utf8(char *out, uint32_t c)
{
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    if (c < 0x800) {
        *out++ = (char)(0xc0 | c >> 6);
    } else {
        if (c < 0x10000) {
            *out++ = (char)(0xe0 | c >> 12);
        } else {
            *out++ = (char)(0xf0 | c >> 18);
            *out++ = (char)(0x80 | (c >> 12 & 0x3f));
        }
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
    }
    *out++ = (char)(0x80 | (c & 0x3f));
    return out;
}

/* Parses \uXXXX, or the surrogate pair of a character above U+FFFF; s->at is at the backslash. */
static int scan_unicode(struct scan *s, char **out)
{
    int32_t c = hex4(s, s->at + 2), low;
    const char *start = s->at;

    if (c < 0)
        return bad(s, start, "invalid escape: \\u takes four hexadecimal digits");
    if (c == 0)
        return bad(s, start, "a string must not contain the character NUL (\\u0000)");
    s->at += 6;
    if (c >= 0xd800 && c <= 0xdfff) {
        low = c < 0xdc00 && next_starts(s, "\\u") ? hex4(s, s->at + 2) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return bad(s, start,
                       "invalid escape: unpaired surrogate; write both halves, \\uD8xx\\uDCxx");
        s->at += 6;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    *out = write_utf8(*out, (uint32_t)c);
    return 0;
}

/* Parses an escape; s->at is at the backslash. Writes fewer bytes than it reads. */
static int scan_escape(struct scan *s, char **out)
{
    static const char letters[] = "\"\"\\\\//b\bf\fn\nr\rt\t"; /* pairs: letter, character */
    char c = s->end - s->at > 1 ? s->at[1] : '\0';

    if (c == 'u')
        return scan_unicode(s, out);
    for (size_t i = 0; i + 1 < sizeof(letters); i += 2) {
        if (c == letters[i]) {
            *(*out)++ = letters[i + 1];
            s->at += 2;
            return 0;
        }
    }
    return bad(s, s->at,
               "invalid escape: after \\ expected one of \" \\ / b f n r t u; write \\\\ for "
               "a backslash");
}

/* Returns the number of bytes before the closing quote, or before the end of the text. Does not
 * validate them. */
static size_t raw_length(const struct scan *s)
{
    const char *p = s->at;

    while (p < s->end && *p != '"')
        p += *p == '\\' && s->end - p > 1 ? 2 : 1;
    return (size_t)(p - s->at);
}

/* Parses a string; s->at is at the opening quote. */
static int scan_string(struct scan *s, char **result)
{
    const char *start = s->at++;
    char *out = arena_alloc(&s->doc->arena, raw_length(s) + 1);
    int rc;

    if (out == NULL)
        return no_memory(s);
    *result = out;
    for (;;) {
        size_t bytes = text_utf8_char(s->at, (size_t)(s->end - s->at));

        if (s->at == s->end)
            return bad(s, start, "unterminated string: the closing quote is missing");
        if (*s->at == '"')
            break;
        if (*s->at == '\\') {
            rc = scan_escape(s, &out);
            if (rc < 0)
                return rc;
            continue;
        }
        if (bytes == 0)
            return bad(s, s->at, "the byte 0x%02x in a string is not UTF-8; save the text as UTF-8",
                       (unsigned char)*s->at);
        if ((unsigned char)*s->at < 0x20)
            return bad(s, s->at,
                       "the control byte 0x%02x in a string; write it as an escape (\\n, \\t, "
                       "\\u00%02x), or is a closing quote missing?",
                       (unsigned char)*s->at, (unsigned char)*s->at);
        memcpy(out, s->at, bytes);
        out += bytes;
        s->at += bytes;
    }
    s->at++;
    *out = '\0';
    return 0;
}

static size_t skip_digits(struct scan *s)
{
    const char *start = s->at;

    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return (size_t)(s->at - start);
}

/* Moves over -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)? */
static int skip_number(struct scan *s)
{
    const char *start = s->at, *digits;
    size_t n;

    s->at += next_is(s, '-');
    digits = s->at;
    n = skip_digits(s);
    if (n == 0) {
        s->at = start;
        return bad_token(s, "a number with a digit after the '-'");
    }
    if (n > 1 && *digits == '0')
        return bad(s, start,
                   "a number must not start with a zero followed by digits; remove the zero");
    if (next_is(s, '.')) {
        s->at++;
        if (skip_digits(s) == 0)
            return bad_token(s, "a digit after the point of a number");
    }
    if (next_is(s, 'e') || next_is(s, 'E')) {
        s->at++;
        if (next_is(s, '+') || next_is(s, '-'))
            s->at++;
        if (skip_digits(s) == 0)
            return bad_token(s, "a digit in the exponent of a number");
    }
    return 0;
}

static bool is_written_zero(const char *number)
{
    return number[strcspn(number, "123456789eE")] < '1' ||
           number[strcspn(number, "123456789eE")] > '9';
}

static int scan_number(struct scan *s, struct json_node *node)
{
    const char *start = s->at;
    double v;
    int rc = skip_number(s);

    if (rc < 0)
        return rc;
    node->number = arena_strndup(&s->doc->arena, start, (size_t)(s->at - start));
    if (node->number == NULL)
        return no_memory(s);
    v = strtod_l(node->number, NULL, s->c_locale);
    if (!isfinite(v) || (v == 0 && !is_written_zero(node->number)))
        return bad(s, start, "the number %.*s%s is %s", JSON_SHOWN_BYTES, node->number,
                   strlen(node->number) > JSON_SHOWN_BYTES ? "..." : "",
                   v == 0 ? "too close to zero for a 64-bit float (smallest: 4.9e-324)"
                          : "too large for a 64-bit float (largest: 1.8e308)");
    node->value.type = cJSON_Number;
    node->value.valuedouble = v;
    node->value.valueint = v >= INT_MAX ? INT_MAX : v <= INT_MIN ? INT_MIN : (int)v;
    return 0;
}

static int scan_word(struct scan *s, struct json_node *node)
{
    static const struct {
        const char *word;
        int type;
    } words[] = { { "true", cJSON_True }, { "false", cJSON_False }, { "null", cJSON_NULL } };

    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!next_starts(s, words[i].word))
            continue;
        s->at += strlen(words[i].word);
        node->value.type = words[i].type;
        node->value.valueint = words[i].type == cJSON_True; /* as cJSON does */
        return 0;
    }
    return bad_token(s, "a value");
}

/* Appends to cJSON's list: the last `next` is NULL, and the first child's `prev` is the last
 * child. */
static void append(struct json_node *parent, struct json_node *child)
{
    cJSON *first = parent->value.child;

    if (first == NULL) {
        parent->value.child = &child->value;
        child->value.prev = &child->value;
        return;
    }
    child->value.prev = first->prev;
    first->prev->next = &child->value;
    first->prev = &child->value;
}

/* Parses the token after a value of an object or array. *more: true after a comma, false after
 * `closing`. */
static int scan_more(struct scan *s, char closing, bool *more)
{
    const char *expected = closing == '}' ? "',' or '}'" : "',' or ']'";

    skip_blanks(s);
    *more = next_is(s, ',');
    if (!*more && !next_is(s, closing))
        return bad_token(s, expected);
    s->at++;
    if (!*more)
        return 0;
    skip_blanks(s);
    if (next_is(s, closing))
        return bad(s, s->at, "found '%c' after a comma; remove the comma", closing);
    return 0;
}

static struct json_node *new_node(struct scan *s, struct json_node *parent)
{
    struct json_node *node = arena_alloc(&s->doc->arena, sizeof(*node));

    if (node != NULL)
        node->parent = parent;
    return node;
}

static int scan_array(struct scan *s, struct json_node *node, unsigned depth)
{
    struct json_node *child;
    bool more = false;
    int rc;

    node->value.type = cJSON_Array;
    s->at++;
    skip_blanks(s);
    if (next_is(s, ']')) {
        s->at++;
        return 0;
    }
    for (uint32_t index = 0;; index++) {
        child = new_node(s, node);
        if (child == NULL)
            return no_memory(s);
        child->index = index;
        append(node, child);
        rc = scan_value(s, child, depth);
        if (rc == 0)
            rc = scan_more(s, ']', &more);
        if (rc < 0 || !more)
            return rc;
    }
}

static int bad_duplicate(struct scan *s, const char *at, const struct json_node *first)
{
    const char *key = first->value.string;
    char shown[JSON_SHOWN_BYTES * 2];

    json_describe(s->doc, &first->value, shown, sizeof(shown));
    return bad(s, at,
               "duplicate key \"%.*s\"; the first, with %s, is at %" PRIu32 ":%" PRIu32
               "; remove one of them",
               (int)text_utf8_cut(key, strnlen(key, JSON_SHOWN_BYTES)), key, shown, first->line,
               first->column);
}

/* Sets *out to the node for a key. A duplicate that wins reuses the cleared node of the first
 * value, so the keys keep the order of their first occurrence, as in Python. */
static int member_node(struct scan *s, struct json_node *object, struct map *keys, const char *at,
                       char *key, struct json_node **out)
{
    struct json_node *node;
    uint64_t known;

    if (!map_get(keys, key, &known)) {
        node = new_node(s, object);
        if (node == NULL || map_put(keys, key, (uintptr_t)node) == MAP_NOMEM)
            return no_memory(s);
        node->value.string = key;
        append(object, node);
    } else {
        node = (struct json_node *)(uintptr_t)known;
        if (!(s->flags & JSON_LAST_DUPLICATE_WINS))
            return bad_duplicate(s, at, node);
        *node = (struct json_node){
            .parent = object,
            .value = { .next = node->value.next, .prev = node->value.prev, .string = key },
        };
    }
    *out = node;
    return 0;
}

/* Parses "key": value. `keys` maps each earlier key to its node. */
static int scan_member(struct scan *s, struct json_node *object, struct map *keys, unsigned depth)
{
    const char *start = s->at;
    struct json_node *child = NULL;
    char *key;
    int rc;

    if (!next_is(s, '"'))
        return bad_token(s, "a key in double quotes");
    rc = scan_string(s, &key);
    if (rc == 0)
        rc = member_node(s, object, keys, start, key, &child);
    if (rc < 0)
        return rc;
    skip_blanks(s);
    if (!next_is(s, ':'))
        return bad_token(s, "':' after a key");
    s->at++;
    skip_blanks(s);
    return scan_value(s, child, depth);
}

static int scan_object(struct scan *s, struct json_node *node, unsigned depth)
{
    struct map keys = { 0 };
    bool more = true;
    int rc = 0;

    node->value.type = cJSON_Object;
    s->at++;
    skip_blanks(s);
    if (next_is(s, '}')) {
        s->at++;
        return 0;
    }
    while (rc == 0 && more) {
        rc = scan_member(s, node, &keys, depth);
        if (rc == 0)
            rc = scan_more(s, '}', &more);
    }
    map_fini(&keys);
    return rc;
}

/* Parses a value to `node`, which is already linked. `depth`: number of enclosing objects and
 * arrays. */
static int scan_value(struct scan *s, struct json_node *node, unsigned depth)
{
    bool is_object = next_is(s, '{'), is_array = next_is(s, '[');

    node->line = s->line;
    node->column = column_of(s, s->at);
    if (s->n_values++ == JSON_MAX_VALUES)
        return bad(s, s->at, "more than %d values in one text", JSON_MAX_VALUES);
    if ((is_object || is_array) && depth == JSON_MAX_DEPTH)
        return bad(s, s->at, "objects and arrays are nested more than %d levels deep",
                   JSON_MAX_DEPTH);
    if (is_object)
        return scan_object(s, node, depth + 1);
    if (is_array)
        return scan_array(s, node, depth + 1);
    if (next_is(s, '"')) {
        node->value.type = cJSON_String;
        return scan_string(s, &node->value.valuestring);
    }
    if (s->at < s->end && (*s->at == '-' || (*s->at >= '0' && *s->at <= '9')))
        return scan_number(s, node);
    return scan_word(s, node);
}

/* Text that follows the root. If the root is the string "{", the whole text is in quotes:
 * "{"key": 1}". */
static int bad_rest(struct scan *s)
{
    const cJSON *root = &s->doc->root->value;
    char what[32];

    if (cJSON_IsString(root) && (root->valuestring[0] == '{' || root->valuestring[0] == '[') &&
        root->valuestring[1 + strspn(root->valuestring + 1, " ")] == '\0')
        return bad(s, s->at,
                   "found %s, expected nothing more after the value, which is the string \"%c\"; "
                   "remove the quotes around the text",
                   found(s, what), root->valuestring[0]);
    return bad_token(s, "nothing more after the value");
}

static int scan_document(struct scan *s)
{
    struct json *doc = s->doc;
    int rc;

    if (s->end - s->at > JSON_MAX_BYTES)
        return err_set(s->err, ERR_INPUT, "%s: the text has %zu bytes; at most %d are allowed",
                       doc->name, (size_t)(s->end - s->at), JSON_MAX_BYTES);
    if (next_starts(s, "\xef\xbb\xbf"))
        s->at += 3;
    s->line_start = s->at;
    skip_blanks(s);
    doc->root = new_node(s, NULL);
    if (doc->root == NULL)
        return no_memory(s);
    rc = scan_value(s, doc->root, 0);
    if (rc < 0)
        return rc;
    skip_blanks(s);
    return s->at == s->end ? 0 : bad_rest(s);
}

int json_parse(const char *name, const char *text, size_t n, unsigned flags, struct json **out,
               struct err *err)
{
    struct scan s = { .at = text, .end = text + n, .line = 1, .flags = flags, .err = err };
    int rc;

    s.doc = calloc(1, sizeof(*s.doc));
    if (s.doc == NULL)
        return err_set(err, ERR_NOMEM, "%s: out of memory", name);
    s.doc->name = arena_strdup(&s.doc->arena, name);
    s.c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (s.doc->name == NULL || s.c_locale == (locale_t)0)
        rc = err_set(err, ERR_NOMEM, "%s: out of memory", name);
    else
        rc = scan_document(&s);
    if (s.c_locale != (locale_t)0)
        freelocale(s.c_locale);
    if (rc < 0)
        json_free(s.doc);
    else
        *out = s.doc;
    return rc;
}
