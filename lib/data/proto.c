/* proto.c - see proto.h. */
#include "data/proto.h"

#include "base/err.h"

bool proto_read_varint(struct proto_span *w, uint64_t *out)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 70 && w->at < w->end; shift += 7) {
        uint8_t b = *w->at++;

        v |= shift < 64 ? (uint64_t)(b & 0x7f) << shift : 0;
        if (b < 0x80) {
            *out = v;
            return true;
        }
    }
    return false;
}

int proto_malformed(const struct proto_span *w, const char *what, struct err *err)
{
    return err_set(err, ERR_INPUT, "not a tf.train.Example: %s at byte %zu of the record", what,
                   (size_t)(w->at - w->record));
}

int proto_next_slow(struct proto_span *w, struct proto_field *f, struct err *err)
{
    struct proto_span start = *w;
    uint64_t tag, n = 0;

    if (!proto_read_varint(w, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
        return proto_malformed(&start, "invalid protobuf tag", err);
    f->number = (uint32_t)tag >> 3;
    f->type = (uint32_t)tag & 7;
    switch (f->type) {
    case PROTO_VARINT:
        return proto_read_varint(w, &f->value)
                   ? 1
                   : proto_malformed(&start, "unterminated number", err);
    case PROTO_64:
        n = 8;
        break;
    case PROTO_32:
        n = 4;
        break;
    case PROTO_BYTES:
        if (!proto_read_varint(w, &n))
            return proto_malformed(&start, "unterminated length", err);
        break;
    default:
        return proto_malformed(&start, "a protobuf field of unknown type", err);
    }
    if (n > proto_left(w))
        return proto_malformed(&start, "a field that is longer than the record", err);
    f->bytes = proto_part(w, n);
    w->at += n;
    return 1;
}
