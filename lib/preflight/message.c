#include "preflight/message.h"

#include <string.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/text.h"

static const uint32_t mark = 0x46500100; /* version 1 in the second byte; the kind is added */
static const uint32_t data_mark = 0x46500180;
static const int64_t skew_max = (int64_t)1 << 52; /* a sum over PREFLIGHT_WORLD_MAX tasks does not overflow */
static const uint64_t rate_max = (uint64_t)1 << 50;

enum { ENTRY_BYTES = 40, MTU_MAX = 1 << 20 };

/* ---- strings of the facts, in the order of the wire ---- */

#define FIELD(name_) { offsetof(struct preflight_facts, name_), sizeof(((struct preflight_facts *)0)->name_) }
static const struct {
    size_t at, size;
} strings[] = {
    FIELD(cluster), FIELD(job),          FIELD(version),       FIELD(devices),
    FIELD(kernels), FIELD(listen_fault), FIELD(storage_fault), FIELD(open_fault),
};

/* ---- writing ---- */

static void put_u32(struct buf *out, uint32_t v)
{
    uint8_t bytes[4];

    bytes_set_u32(bytes, v);
    buf_add(out, bytes, sizeof(bytes));
}

static void put_u64(struct buf *out, uint64_t v)
{
    uint8_t bytes[8];

    bytes_set_u64(bytes, v);
    buf_add(out, bytes, sizeof(bytes));
}

void message_write(enum message_kind kind, const void *body, size_t n, struct buf *out)
{
    CHECK(n <= MESSAGE_BODY_MAX);
    put_u32(out, mark + (uint32_t)kind);
    put_u32(out, (uint32_t)n);
    if (n > 0)
        buf_add(out, body, n);
}

void message_write_u32(enum message_kind kind, uint32_t v, struct buf *out)
{
    uint8_t bytes[4];

    bytes_set_u32(bytes, v);
    message_write(kind, bytes, sizeof(bytes), out);
}

static void put_facts(const struct preflight_facts *f, struct buf *out)
{
    put_u64(out, f->nonce);
    put_u32(out, f->data_port);
    put_u32(out, f->sync_us);
    put_u64(out, f->open_ms);
    put_u64(out, f->state_bytes);
    put_u64(out, f->gradient_bytes);
    for (size_t i = 0; i < COUNT_OF(strings); i++) {
        const char *s = (const char *)f + strings[i].at;
        size_t n = strnlen(s, strings[i].size - 1);

        put_u32(out, (uint32_t)n);
        buf_add(out, s, n);
    }
}

static void put_entry(const struct preflight_entry *e, struct buf *out)
{
    const uint8_t states[8] = { e->control, e->data, e->in, e->large, e->storage, e->lock, e->reverse };

    buf_add(out, states, sizeof(states));
    put_u32(out, e->rtt_us);
    put_u32(out, e->mtu);
    put_u64(out, (uint64_t)e->skew_us);
    put_u64(out, e->rate);
    put_u64(out, 0);
}

void message_write_hello(const struct message_hello *h, struct buf *out)
{
    struct buf body = { 0 };

    put_u32(&body, h->rank);
    put_u32(&body, h->world);
    put_facts(&h->facts, &body);
    out->failed = out->failed || body.failed;
    if (!body.failed)
        message_write(MESSAGE_HELLO, body.data, body.len, out);
    buf_fini(&body);
}

void message_write_row(uint32_t rank, uint32_t world, const struct preflight_row *row,
                       struct buf *out)
{
    struct buf body = { 0 };

    put_u32(&body, rank);
    put_u32(&body, world);
    put_facts(&row->facts, &body);
    for (uint32_t i = 0; i < world; i++)
        put_entry(&row->entries[i], &body);
    out->failed = out->failed || body.failed;
    if (!body.failed)
        message_write(MESSAGE_ROW_IS, body.data, body.len, out);
    buf_fini(&body);
}

void message_write_data_head(uint32_t rank, const uint8_t ticket[MESSAGE_TICKET_BYTES],
                             uint8_t out[MESSAGE_DATA_HEAD])
{
    bytes_set_u32(out, data_mark);
    bytes_set_u32(out + 4, rank);
    memcpy(out + 8, ticket, MESSAGE_TICKET_BYTES);
}

/* ---- reading ---- */

struct cursor {
    const uint8_t *at;
    size_t left;
    bool failed; /* a read went past the end, or a value is invalid */
};

static const uint8_t *take(struct cursor *c, size_t n)
{
    const uint8_t *at = c->at;

    if (c->failed || c->left < n) {
        c->failed = true;
        return NULL;
    }
    c->at += n;
    c->left -= n;
    return at;
}

static uint32_t take_u32(struct cursor *c)
{
    const uint8_t *at = take(c, 4);

    return at != NULL ? bytes_get_u32(at) : 0;
}

static uint64_t take_u64(struct cursor *c)
{
    const uint8_t *at = take(c, 8);

    return at != NULL ? bytes_get_u64(at) : 0;
}

/* Texts of other tasks are printed on terminals: no control characters. */
static void take_string(struct cursor *c, char *out, size_t size)
{
    uint32_t n = take_u32(c);
    const uint8_t *at = n < size ? take(c, n) : NULL;

    if (at == NULL || !text_is_utf8((const char *)at, n)) {
        c->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (at[i] < ' ' || at[i] == 0x7f)
            c->failed = true;
    memcpy(out, at, n);
    out[n] = '\0';
}

static void take_facts(struct cursor *c, struct preflight_facts *f)
{
    *f = (struct preflight_facts){ .nonce = take_u64(c) };
    f->data_port = take_u32(c);
    f->sync_us = take_u32(c);
    f->open_ms = take_u64(c);
    f->state_bytes = take_u64(c);
    f->gradient_bytes = take_u64(c);
    c->failed = c->failed || f->data_port > UINT16_MAX;
    for (size_t i = 0; i < COUNT_OF(strings); i++)
        take_string(c, (char *)f + strings[i].at, strings[i].size);
}

static void take_entry(struct cursor *c, struct preflight_entry *e)
{
    const uint8_t *s = take(c, ENTRY_BYTES);

    if (s == NULL)
        return;
    *e = (struct preflight_entry){ .control = s[0], .data = s[1], .in = s[2], .large = s[3],
                                   .storage = s[4], .lock = s[5], .reverse = s[6],
                                   .rtt_us = bytes_get_u32(s + 8), .mtu = bytes_get_u32(s + 12),
                                   .skew_us = (int64_t)bytes_get_u64(s + 16),
                                   .rate = bytes_get_u64(s + 24) };
    if (s[0] >= PREFLIGHT_REACHES || s[1] >= PREFLIGHT_REACHES || s[2] > 1 || s[7] != 0 ||
        bytes_get_u64(s + 32) != 0 || e->mtu > MTU_MAX || e->rate > rate_max ||
        e->skew_us > skew_max || e->skew_us < -skew_max)
        c->failed = true;
    for (size_t i = 3; i < 7; i++)
        if (s[i] >= PREFLIGHT_CHECKS)
            c->failed = true;
}

bool message_read_head(const uint8_t head[MESSAGE_HEAD], enum message_kind *kind, uint32_t *n)
{
    uint32_t k = bytes_get_u32(head) - mark;

    *n = bytes_get_u32(head + 4);
    if (k == 0 || k >= MESSAGE_KINDS || *n > MESSAGE_BODY_MAX)
        return false;
    *kind = (enum message_kind)k;
    return true;
}

bool message_read_u32(const uint8_t *body, size_t n, uint32_t *out)
{
    struct cursor c = { body, n, false };

    *out = take_u32(&c);
    return !c.failed && c.left == 0;
}

bool message_read_u64(const uint8_t *body, size_t n, uint64_t *out)
{
    struct cursor c = { body, n, false };

    *out = take_u64(&c);
    return !c.failed && c.left == 0;
}

bool message_read_hello(const uint8_t *body, size_t n, struct message_hello *out)
{
    struct cursor c = { body, n, false };

    out->rank = take_u32(&c);
    out->world = take_u32(&c);
    take_facts(&c, &out->facts);
    return !c.failed && c.left == 0 && out->world <= PREFLIGHT_WORLD_MAX && out->rank < out->world;
}

bool message_read_row(const uint8_t *body, size_t n, uint32_t world, uint32_t *rank,
                      struct preflight_row *out)
{
    struct cursor c = { body, n, false };

    *rank = take_u32(&c);
    if (take_u32(&c) != world || *rank >= world)
        return false;
    take_facts(&c, &out->facts);
    for (uint32_t i = 0; i < world && !c.failed; i++)
        take_entry(&c, &out->entries[i]);
    return !c.failed && c.left == 0;
}

bool message_read_data_head(const uint8_t head[MESSAGE_DATA_HEAD], uint32_t *rank,
                            uint8_t ticket[MESSAGE_TICKET_BYTES])
{
    *rank = bytes_get_u32(head + 4);
    memcpy(ticket, head + 8, MESSAGE_TICKET_BYTES);
    return bytes_get_u32(head) == data_mark;
}
