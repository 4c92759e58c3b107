#include "base/json_priv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"

enum { SHOWN_POINTER_BYTES = 200 };

static const struct json_node *node_of(const cJSON *value)
{
    return (const struct json_node *)value;
}

void json_free(struct json *doc)
{
    if (doc == NULL)
        return;
    arena_fini(&doc->arena);
    free(doc);
}

const cJSON *json_root(const struct json *doc)
{
    return &doc->root->value;
}

void json_position(const struct json *doc, const cJSON *value, uint32_t *line, uint32_t *column)
{
    (void)doc;
    *line = node_of(value)->line;
    *column = node_of(value)->column;
}

/* Writes "/key", escaped (~ as ~0, / as ~1), or "/index" so that the text ends before `end`, and
 * returns its start. With `end` NULL, writes nothing. Adds the length to *n. */
static char *write_step(const struct json_node *node, char *end, size_t *n)
{
    char index[16];
    const char *word = node->value.string;

    if (word == NULL) {
        snprintf(index, sizeof(index), "%" PRIu32, node->index);
        word = index;
    }
    for (size_t i = strlen(word); i-- > 0;) {
        bool escaped = word[i] == '~' || word[i] == '/';

        *n += 1 + escaped;
        if (end == NULL)
            continue;
        *--end = word[i] == '~' ? '0' : word[i] == '/' ? '1' : word[i];
        if (escaped)
            *--end = '~';
    }
    *n += 1;
    if (end != NULL)
        *--end = '/';
    return end;
}

const char *json_pointer(const struct json *doc, const cJSON *value)
{
    /* The pointer is built on the first request, because all pointers together can be much longer
     * than the text. The document is logically const. */
    struct json_node *node = (struct json_node *)value;
    struct arena *arena = &((struct json *)doc)->arena;
    size_t n = 0, again = 0;
    char *text;

    if (node->pointer != NULL)
        return node->pointer;
    for (const struct json_node *at = node; at->parent != NULL; at = at->parent)
        write_step(at, NULL, &n);
    text = arena_alloc(arena, n + 1);
    if (text == NULL)
        return "(out of memory)";
    node->pointer = text;
    text += n;
    for (const struct json_node *at = node; at->parent != NULL; at = at->parent)
        text = write_step(at, text, &again);
    return node->pointer;
}

const char *json_number_text(const struct json *doc, const cJSON *value)
{
    (void)doc;
    return node_of(value)->number;
}

int json_error(const struct json *doc, const cJSON *value, struct err *err, const char *fmt, ...)
{
    const char *pointer;
    size_t shown;
    va_list ap;

    va_start(ap, fmt);
    err_setv(err, ERR_INPUT, fmt, ap);
    va_end(ap);
    if (value == NULL)
        return err_wrap(err, ERR_INPUT, "%s", doc->name);
    pointer = json_pointer(doc, value);
    shown = strlen(pointer);
    if (shown > SHOWN_POINTER_BYTES)
        shown = text_utf8_cut(pointer, SHOWN_POINTER_BYTES);
    if (shown > 0)
        err_wrap(err, ERR_INPUT, "%.*s%s", (int)shown, pointer,
                 pointer[shown] != '\0' ? "..." : "");
    return err_wrap(err, ERR_INPUT, "%s:%" PRIu32 ":%" PRIu32, doc->name, node_of(value)->line,
                    node_of(value)->column);
}

static void describe_string(const char *s, char *out, size_t n)
{
    char head[JSON_SHOWN_BYTES + 1];
    size_t length = strlen(s), shown = length;
    struct buf quoted = { 0 };

    if (length > JSON_SHOWN_BYTES)
        shown = text_utf8_cut(s, JSON_SHOWN_BYTES);
    snprintf(head, sizeof(head), "%.*s", (int)shown, s);
    buf_json(&quoted, head);
    snprintf(out, n, "the string %s%s", quoted.failed ? "(out of memory)" : quoted.data,
             shown < length ? "..." : "");
    buf_fini(&quoted);
}

void json_describe(const struct json *doc, const cJSON *value, char *out, size_t n)
{
    const char *number;

    if (cJSON_IsString(value)) {
        describe_string(value->valuestring, out, n);
    } else if (cJSON_IsNumber(value)) {
        number = json_number_text(doc, value);
        snprintf(out, n, "the number %.*s%s", JSON_SHOWN_BYTES, number,
                 strlen(number) > JSON_SHOWN_BYTES ? "..." : "");
    } else {
        snprintf(out, n, "%s",
                 value == NULL           ? "nothing"
                 : cJSON_IsObject(value) ? "an object"
                 : cJSON_IsArray(value)  ? "an array"
                 : cJSON_IsTrue(value)   ? "true"
                 : cJSON_IsFalse(value)  ? "false"
                                         : "null");
    }
    if (n > 0)
        out[text_utf8_cut(out, strlen(out))] = '\0';
}
