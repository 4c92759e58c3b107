#include "rdzv/wire.h"

#include <stdbool.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

/* ---- memory ---- */

static void *take(void *arg, size_t bytes)
{
    struct wire *w = arg;

    if (bytes > WIRE_MEMORY_MAX - w->used)
        return NULL;
    w->used += bytes;
    return arena_alloc(&w->arena, bytes > 0 ? bytes : 1);
}

static void give(void *arg, void *memory)
{
    (void)arg;
    (void)memory; /* wire_fini() frees all memory at once */
}

void *wire_unpack(struct wire *w, const ProtobufCMessageDescriptor *type, const void *data,
                  size_t n)
{
    ProtobufCAllocator allocator = { .alloc = take, .free = give, .allocator_data = w };

    w->used = 0;
    if (n > WIRE_BYTES_MAX)
        return NULL;
    return protobuf_c_message_unpack(type, &allocator, n, n > 0 ? data : (const void *)"");
}

void wire_fini(struct wire *w)
{
    arena_fini(&w->arena);
    w->used = 0;
}

/* ---- strings ---- */

static bool is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

int wire_check_string(const char *field, const char *s, size_t max, struct err *err)
{
    size_t n = strlen(s);

    if (n > max)
        return err_set(err, ERR_INPUT, "%s: %zu bytes, at most %zu are allowed", field, n, max);
    if (!text_is_utf8(s, n))
        return err_set(err, ERR_INPUT, "%s: not UTF-8", field);
    for (size_t i = 0; i < n; i++)
        if (is_control(s[i]))
            return err_set(err, ERR_INPUT, "%s: control character 0x%02x at byte %zu", field,
                           (unsigned char)s[i], i);
    return 0;
}

void wire_text(char *out, size_t n_out, const void *text, size_t n)
{
    const char *s = text;
    size_t len = 0;

    CHECK(n_out > 0);
    while (n > 0) {
        size_t bytes = text_utf8_char(s, n), put = bytes > 0 ? bytes : 1;

        if (len + put >= n_out)
            break;
        if (bytes == 0)
            out[len] = '?';
        else if (is_control(*s))
            out[len] = ' ';
        else
            memcpy(out + len, s, put);
        len += put;
        s += put;
        n -= put;
    }
    out[len] = '\0';
}

/* ---- tasks ---- */

uint32_t wire_rank(const struct wire_cluster *c, const Trainerd__V1__Task *t)
{
    for (uint32_t i = 0; i < c->world; i++)
        if (c->tasks[i].index == t->index && strcmp(c->tasks[i].type, t->type) == 0)
            return i;
    return MEMBER_NO_RANK;
}

void wire_fill_task(const struct wire_cluster *c, uint32_t rank, Trainerd__V1__Task *out)
{
    trainerd__v1__task__init(out);
    out->type = (char *)c->tasks[rank].type;
    out->index = c->tasks[rank].index;
    out->address = (char *)c->tasks[rank].address;
}
