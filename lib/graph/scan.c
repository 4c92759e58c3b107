/* scan.c - validates the bytes of a message before they are unpacked.
 *
 * The unpacker builds a tree in memory: many times the size of the file if the file consists of
 * empty messages, with a recursion as deep as the schema and the bytes allow. The scan follows the
 * same descriptors, adds up the memory that the tree would need, and allocates nothing. */
#include "graph/graph_priv.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"

enum {
    MAX_DEPTH = 64,
    FIELD_COST = 96, /* per field: the unpacker's own bookkeeping and the overhead of an
                        allocation */
};

/* Memory that any file may need, in addition to twice its size. */
static const uint64_t free_cost = (uint64_t)256 << 20;

uint64_t graph_scan_budget(size_t n)
{
    return 2 * (uint64_t)n + free_cost;
}

struct scan {
    const uint8_t *begin;
    uint64_t cost, max_cost;
    struct err *err;
};

struct span {
    const uint8_t *at, *end;
};

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static int bad(struct scan *s, const uint8_t *at, const char *what)
{
    return err_set(s->err, ERR_INPUT,
                   "not a readable ONNX model: %s at byte %zu; the file is damaged or not ONNX",
                   what, (size_t)(at - s->begin));
}

static bool read_varint(struct span *in, uint64_t *out)
{
    unsigned shift;

    *out = 0;
    for (shift = 0; shift < 70 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;

        *out |= shift < 63 ? (uint64_t)(byte & 0x7F) << shift : (uint64_t)(byte & 1) << 63;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Bytes of one element of a repeated field once unpacked. */
static size_t element_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 8;
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

/* Number of elements of a packed field; a varint ends at a byte with a clear high bit. */
static size_t packed_elements(const ProtobufCFieldDescriptor *f, struct span body)
{
    size_t bytes = (size_t)(body.end - body.at), n = 0;

    switch (f->type) {
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return bytes / 4;
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return bytes / 8;
    default:
        for (; body.at < body.end; body.at++)
            n += *body.at < 0x80;
        return n;
    }
}

static int scan_message(struct scan *s, const ProtobufCMessageDescriptor *type, struct span in,
                        uint32_t depth);

/* Scans a length-delimited field. `f` is NULL for an unknown field. */
static int scan_bytes(struct scan *s, const ProtobufCFieldDescriptor *f, struct span body,
                      uint32_t depth)
{
    size_t n = (size_t)(body.end - body.at);

    if (f != NULL && f->type == PROTOBUF_C_TYPE_MESSAGE) {
        const ProtobufCMessageDescriptor *inner = f->descriptor;

        s->cost += inner->sizeof_message;
        return scan_message(s, inner, body, depth + 1);
    }
    if (f != NULL && f->type == PROTOBUF_C_TYPE_STRING) {
        if (memchr(body.at, 0, n) != NULL || !text_is_utf8((const char *)body.at, n))
            return bad(s, body.at, "text that is not UTF-8");
        s->cost += n + 1;
    } else if (f != NULL && f->type != PROTOBUF_C_TYPE_BYTES) {
        s->cost += packed_elements(f, body) * element_bytes(f);
    } else {
        s->cost += n;
    }
    return 0;
}

static int scan_field(struct scan *s, const ProtobufCMessageDescriptor *type, struct span *in,
                      uint32_t depth)
{
    const uint8_t *start = in->at;
    const ProtobufCFieldDescriptor *f;
    struct span body;
    uint64_t tag, v;

    if (!read_varint(in, &tag) || tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF)
        return bad(s, start, "an invalid field number");
    f = protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
    s->cost += FIELD_COST + (f != NULL ? element_bytes(f) : 0);
    if (s->cost > s->max_cost)
        return bad(s, start, "more structure than the limit for a file of this size");
    switch ((enum wire)(tag & 7)) {
    case WIRE_VARINT:
        return read_varint(in, &v) ? 0 : bad(s, start, "an unterminated varint");
    case WIRE_64:
    case WIRE_32:
        v = (tag & 7) == WIRE_64 ? 8 : 4;
        if ((uint64_t)(in->end - in->at) < v)
            return bad(s, start, "a truncated number");
        in->at += v;
        return 0;
    case WIRE_BYTES:
        if (!read_varint(in, &v) || v > (uint64_t)(in->end - in->at))
            return bad(s, start, "a field longer than its message");
        body = (struct span){ in->at, in->at + v };
        in->at = body.end;
        return scan_bytes(s, f, body, depth);
    }
    return bad(s, start, "an unknown wire type");
}

static int scan_message(struct scan *s, const ProtobufCMessageDescriptor *type, struct span in,
                        uint32_t depth)
{
    int rc = 0;

    if (depth > MAX_DEPTH)
        return bad(s, in.at, "nesting deeper than 64 levels");
    while (rc == 0 && in.at < in.end)
        rc = scan_field(s, type, &in, depth);
    return rc;
}

int graph_scan(const ProtobufCMessageDescriptor *type, const uint8_t *bytes, size_t n,
               uint64_t *budget, struct err *err)
{
    struct scan s = { .begin = bytes, .max_cost = *budget, .err = err };
    int rc;

    if (n == 0)
        return err_set(err, ERR_INPUT, "not a readable ONNX model: the file is empty");
    if (n > INT32_MAX) /* protobuf's limit */
        return err_set(err, ERR_INPUT,
                       "the model has %zu bytes, but protobuf allows at most 2 GiB; store its weights as "
                       "external data (onnx.save_model(..., save_as_external_data=True))",
                       n);
    rc = scan_message(&s, type, (struct span){ bytes, bytes + n }, 0);
    *budget -= s.cost < *budget ? s.cost : *budget;
    return rc;
}
