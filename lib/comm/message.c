/* message.c - see message.h. */
#include "comm/message.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/err.h"
#include "code/code.h"
#include "comm/channel.h"
#include "comm/reduce.h"
#include "comm/spare_lanes.h"

/* Offsets of the fields. */
enum {
    HEAD_NUMBER = 4,
    HEAD_COUNT = 8,
    HEAD_TAG = 16,
    HEAD_WHAT = 24,
    HEAD_DTYPE = 25,
    HEAD_OP = 26,
    HEAD_SPARE = 27,
    HEAD_ROOT = 28,

    CHANNEL_WHERE = 4,
    CHANNEL_BYTES = 8,

    LIFE_VERSION = 4,
    LIFE_WHAT = 8,
    LIFE_MEMBER = 12,
    LIFE_WHY = 16,
    LIFE_BYTES = 16,
    LIFE_CORES = 24,
    LIFE_ZERO = 152,
};

static const uint8_t head_magic[4] = { 'x', 'c', 'h', 'g' }, life_magic[4] = { 'l', 'i', 'f', 'e' },
                     channel_magic[4] = { 'm', 'e', 's', 'g' };

_Static_assert(LIFE_WHY + COMM_WHY_BYTES == MESSAGE_LIFE_BYTES, "a reason fits");
_Static_assert(LIFE_CORES + COMM_CORES_BYTES == LIFE_ZERO, "the cores end where the zeros begin");

static int bad_magic(const char *what, const uint8_t found[4], const uint8_t expected[4],
                     struct err *err)
{
    return err_set(err, ERR_PEER,
                   "bytes 0 to 3 are %02x %02x %02x %02x, expected the magic \"%.4s\" of %s",
                   found[0], found[1], found[2], found[3], (const char *)expected, what);
}

void message_seal(uint8_t *head, size_t n)
{
    bytes_set_u32(head + n, crc32c(0, head, n));
}

bool message_is_intact(const uint8_t *head, size_t n)
{
    return bytes_get_u32(head + n) == crc32c(0, head, n);
}

/* ---- the head of an exchange ---- */

int message_check_call(const struct comm_call *call, uint32_t world, struct err *err)
{
    const enum tensor_dtype dtype = (enum tensor_dtype)call->dtype;
    bool is_broadcast = call->what == COMM_BROADCAST;
    bool is_plain = is_broadcast || call->what == COMM_BARRIER; /* bytes, not numbers */
    bool is_coded = call->what == COMM_ALL_REDUCE_CODED;
    bool reduces = call->what == COMM_ALL_REDUCE || call->what == COMM_REDUCE_SCATTER ||
                   call->what == COMM_ALL_REDUCE_PIECES || call->what == COMM_ALL_REDUCE_SPARED;
    uint8_t last_spare = call->what == COMM_ALL_REDUCE_SPARED ? SPARE_APART : 0;

    if (call->what > COMM_ALL_REDUCE_SPARED)
        return err_set(err, ERR_PEER, "kind of call %u, expected at most %d", call->what,
                       COMM_ALL_REDUCE_SPARED);
    if (is_plain   ? dtype != TENSOR_U8
        : is_coded ? dtype != TENSOR_F32
                   : !reduce_can(dtype, COMM_SUM))
        return err_set(err, ERR_PEER, "element type %u is not possible in a call of kind %u",
                       call->dtype, call->what);
    if (is_coded  ? call->op == CODE_NONE || call->op >= CODE_KINDS
        : reduces ? !reduce_can(dtype, (enum comm_op)call->op)
                  : call->op != 0)
        return err_set(err, ERR_PEER,
                       "operation %u is not possible with element type %u in a call of kind %u",
                       call->op, call->dtype, call->what);
    if (call->spare > last_spare)
        return err_set(err, ERR_PEER,
                       "the state of a spare block is %u, expected %s in a call of kind %u",
                       call->spare, last_spare > 0 ? "at most 2" : "0", call->what);
    if (is_broadcast ? call->root >= world : call->root != 0)
        return err_set(err, ERR_PEER, "root is rank %u, expected %s", call->root,
                       is_broadcast ? "a rank of this world" : "0, since the call has no root");
    if (call->what == COMM_BARRIER ? call->count != 0
                                   : call->count > PTRDIFF_MAX / tensor_dtype_bytes(dtype))
        return err_set(err, ERR_PEER, "%" PRIu64 " elements are not possible in a call of kind %u",
                       call->count, call->what);
    return 0;
}

void message_head_write(const struct comm_call *call, uint64_t tag, uint8_t out[MESSAGE_HEAD_BYTES])
{
    memcpy(out, head_magic, sizeof(head_magic));
    bytes_set_u32(out + HEAD_NUMBER, call->number);
    bytes_set_u64(out + HEAD_COUNT, call->count);
    bytes_set_u64(out + HEAD_TAG, tag);
    out[HEAD_WHAT] = call->what;
    out[HEAD_DTYPE] = call->dtype;
    out[HEAD_OP] = call->op;
    out[HEAD_SPARE] = call->spare;
    bytes_set_u32(out + HEAD_ROOT, call->root);
}

int message_head_read(const uint8_t in[MESSAGE_HEAD_BYTES], uint32_t world, struct comm_call *out,
                      uint64_t *tag, struct err *err)
{
    const struct comm_call call = { .count = bytes_get_u64(in + HEAD_COUNT),
                                    .number = bytes_get_u32(in + HEAD_NUMBER),
                                    .what = in[HEAD_WHAT],
                                    .dtype = in[HEAD_DTYPE],
                                    .op = in[HEAD_OP],
                                    .spare = in[HEAD_SPARE],
                                    .root = bytes_get_u32(in + HEAD_ROOT) };
    int rc;

    if (memcmp(in, head_magic, sizeof(head_magic)) != 0)
        return bad_magic("an exchange head", in, head_magic, err);
    rc = message_check_call(&call, world, err);
    if (rc < 0)
        return rc;
    *out = call;
    *tag = bytes_get_u64(in + HEAD_TAG);
    return 0;
}

/* ---- the head of a message on a channel ---- */

void message_channel_write(enum channel_where where, size_t bytes,
                           uint8_t out[MESSAGE_CHANNEL_BYTES])
{
    memcpy(out, channel_magic, sizeof(channel_magic));
    bytes_set_u32(out + CHANNEL_WHERE, where);
    bytes_set_u64(out + CHANNEL_BYTES, bytes);
}

int message_channel_read(const uint8_t in[MESSAGE_CHANNEL_BYTES], enum channel_where *where,
                         size_t *bytes, struct err *err)
{
    uint64_t n = bytes_get_u64(in + CHANNEL_BYTES);
    uint32_t at = bytes_get_u32(in + CHANNEL_WHERE);

    if (memcmp(in, channel_magic, sizeof(channel_magic)) != 0)
        return bad_magic("a message", in, channel_magic, err);
    if (at > CHANNEL_OFFER)
        return err_set(err, ERR_PEER, "place %u of a message, expected 0 to %d", at, CHANNEL_OFFER);
    if (n > COMM_MESSAGE_MAX)
        return err_set(err, ERR_PEER, "a message of %" PRIu64 " bytes, expected at most %d", n,
                       COMM_MESSAGE_MAX);
    if (at == CHANNEL_OFFER && n != 0)
        return err_set(err, ERR_PEER, "an offer of %" PRIu64 " bytes, expected 0", n);
    *where = (enum channel_where)at;
    *bytes = (size_t)n;
    return 0;
}

/* ---- life messages ---- */

static bool is_zero(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++)
        any |= bytes[i];
    return any == 0;
}

static bool has_memory(uint32_t what)
{
    return what == LIFE_JOIN || what == LIFE_PART;
}

void message_life_write(const struct life_message *m, uint8_t out[MESSAGE_LIFE_BYTES])
{
    memset(out, 0, MESSAGE_LIFE_BYTES);
    memcpy(out, life_magic, sizeof(life_magic));
    bytes_set_u32(out + LIFE_VERSION, MESSAGE_LIFE_VERSION);
    bytes_set_u32(out + LIFE_WHAT, m->what);
    bytes_set_u32(out + LIFE_MEMBER, m->member);
    if (m->what == LIFE_OVER)
        memcpy(out + LIFE_WHY, m->why, strnlen(m->why, COMM_WHY_BYTES - 1));
    if (has_memory(m->what) || m->what == LIFE_OFFER)
        bytes_set_u64(out + LIFE_BYTES, m->bytes);
    if (m->what == LIFE_JOIN)
        memcpy(out + LIFE_CORES, m->cores, COMM_CORES_BYTES);
}

static int check_member(const struct life_message *m, uint32_t peer, uint32_t n_members,
                        struct err *err)
{
    uint32_t none = m->what == LIFE_OVER ? COMM_NO_MEMBER : LIFE_PAGE;

    if (m->what == LIFE_BYE || m->what == LIFE_JOIN || m->what == LIFE_OFFER)
        return m->member == peer
                   ? 0
                   : err_set(err, ERR_PEER, "it names member %u as its sender, expected %u",
                             m->member, peer);
    if (m->member < n_members || m->member == none)
        return 0;
    return err_set(err, ERR_PEER, "it names member %u of %u", m->member, n_members);
}

/* What follows `member`. */
static int read_rest(const uint8_t in[MESSAGE_LIFE_BYTES], struct life_message *m, struct err *err)
{
    size_t zero = LIFE_WHY;

    if (m->what == LIFE_OVER) {
        if (memchr(in + LIFE_WHY, '\0', COMM_WHY_BYTES) == NULL)
            return err_set(err, ERR_PEER, "its reason does not end within %d bytes",
                           COMM_WHY_BYTES);
        memcpy(m->why, in + LIFE_WHY, COMM_WHY_BYTES);
        return 0;
    }
    if (has_memory(m->what)) {
        m->bytes = bytes_get_u64(in + LIFE_BYTES);
        if (m->bytes == 0 || m->bytes > PTRDIFF_MAX)
            return err_set(err, ERR_PEER, "it passes memory of %" PRIu64 " bytes", m->bytes);
        zero = LIFE_CORES;
    }
    if (m->what == LIFE_OFFER) {
        m->bytes = bytes_get_u64(in + LIFE_BYTES);
        if (m->bytes > UINT32_MAX)
            return err_set(err, ERR_PEER, "it offers a block for call %" PRIu64, m->bytes);
        zero = LIFE_CORES;
    }
    if (m->what == LIFE_JOIN) {
        memcpy(m->cores, in + LIFE_CORES, COMM_CORES_BYTES);
        zero = LIFE_ZERO;
    }
    if (!is_zero(in + zero, MESSAGE_LIFE_BYTES - zero))
        return err_set(err, ERR_PEER, "bytes %zu to %d are not all zero", zero,
                       MESSAGE_LIFE_BYTES - 1);
    return 0;
}

int message_life_read(const uint8_t in[MESSAGE_LIFE_BYTES], uint32_t peer, uint32_t n_members,
                      struct life_message *out, struct err *err)
{
    struct life_message m = { .what = bytes_get_u32(in + LIFE_WHAT),
                              .member = bytes_get_u32(in + LIFE_MEMBER) };
    uint32_t version = bytes_get_u32(in + LIFE_VERSION);
    int rc;

    if (memcmp(in, life_magic, sizeof(life_magic)) != 0)
        return bad_magic("a life message", in, life_magic, err);
    if (version != MESSAGE_LIFE_VERSION)
        return err_set(err, ERR_PEER, "version %u, expected %d; run the same release on every task",
                       version, MESSAGE_LIFE_VERSION);
    if (m.what < LIFE_BYE || m.what > LIFE_OFFER)
        return err_set(err, ERR_PEER, "kind %u, expected %d to %d", m.what, LIFE_BYE, LIFE_OFFER);
    rc = check_member(&m, peer, n_members, err);
    if (rc == 0)
        rc = read_rest(in, &m, err);
    if (rc == 0)
        *out = m;
    return rc;
}

void message_life_code(const uint8_t message[MESSAGE_LIFE_BYTES], uint32_t sender,
                       const uint8_t key[MESSAGE_KEY_BYTES], uint8_t out[MESSAGE_CODE_BYTES])
{
    uint8_t text[4 + MESSAGE_LIFE_BYTES];

    bytes_set_u32(text, sender);
    memcpy(text + 4, message, MESSAGE_LIFE_BYTES);
    digest_hmac(key, MESSAGE_KEY_BYTES, text, sizeof(text), out);
}
