/* proto.h - parses the fields of a protobuf message in place, for example.h. It reads no byte
 * outside the message and allocates no memory. Threads: any; pure functions. */
#ifndef DATA_PROTO_H
#define DATA_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* wire types */
enum { PROTO_VARINT = 0, PROTO_64 = 1, PROTO_BYTES = 2, PROTO_32 = 5 };

/* The bytes [at, end) of a record. */
struct proto_span {
    const uint8_t *at, *end;
    const uint8_t *record; /* start of the record, for messages */
};

struct proto_field {
    uint32_t number, type;
    uint64_t value;          /* PROTO_VARINT: the value */
    struct proto_span bytes; /* other types: the content */
};

static inline size_t proto_left(const struct proto_span *w)
{
    return (size_t)(w->end - w->at);
}

/* Returns the first n bytes. */
static inline struct proto_span proto_part(const struct proto_span *w, size_t n)
{
    return (struct proto_span){ w->at, w->at + n, w->record };
}

/* Returns true for a field with this number that contains bytes: a message or a string. */
static inline bool proto_is_message(const struct proto_field *f, uint32_t number)
{
    return f->number == number && f->type == PROTO_BYTES;
}

/* Reads a varint and advances `w`. Returns false if it is not terminated. */
bool proto_read_varint(struct proto_span *w, uint64_t *out);
/* Returns ERR_INPUT with the position of `w` in the record. */
int proto_malformed(const struct proto_span *w, const char *what, struct err *err);
/* Reads a field as proto_next() does, without the fast path; `w` is at a field. */
int proto_next_slow(struct proto_span *w, struct proto_field *f, struct err *err);

/* Parses the next field. Returns 1, 0 at the end, or ERR_INPUT. The fast path is a bytes field of
 * less than 128 bytes, the most frequent kind. */
static inline int proto_next(struct proto_span *w, struct proto_field *f, struct err *err)
{
    size_t n = proto_left(w);

    if (n == 0)
        return 0;
    if (n < 2 || (w->at[0] & 0x87) != PROTO_BYTES || w->at[0] < 8 || w->at[1] > 0x7f ||
        w->at[1] > n - 2)
        return proto_next_slow(w, f, err);
    f->number = w->at[0] >> 3;
    f->type = PROTO_BYTES;
    n = w->at[1];
    w->at += 2;
    f->bytes = proto_part(w, n);
    w->at += n;
    return 1;
}

#endif
