/* transfer_chunk.c - see transfer_chunk.h. */
#include "train/transfer_chunk.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "train/health_types.h"
#include "train/state.h"

/* Offsets of the fields. */
enum {
    AT_VERSION = 8,
    AT_CRC = 12,
    AT_OFFSET = 16,
    AT_BYTES = 24,
    AT_STEP = 32,
    AT_EVALUATED_STEP = 40,
    AT_LOSS = 48,
    AT_GRAD_NORM = 56,
    AT_SKIPS_IN_ROW = 64,
    AT_SCALE_GOOD = 68,
    AT_SCALE = 72,
    AT_PLATEAU_STEP = 80,
    AT_PLATEAU_BEST = 88,
    AT_PLATEAU_WAITED = 96,
    AT_PLATEAU_REDUCTIONS = 100,
    AT_PLATEAU_HAS_BEST = 104,
    AT_GRAD_SCALE = 108,
    AT_LEARNING_RATE = 112,
    AT_IS_SKIPPED = 120,
    AT_CODING = 124,
};

static const uint8_t magic[8] = { 't', 'r', 'n', 'c', 'h', 'u', 'n', 'k' };

static uint32_t checksum(const uint8_t head[TRANSFER_HEAD_BYTES], const void *state, size_t bytes)
{
    uint8_t h[TRANSFER_HEAD_BYTES];

    memcpy(h, head, sizeof(h));
    bytes_set_u32(h + AT_CRC, 0);
    return crc32c(crc32c(0, h, sizeof(h)), state, bytes);
}

void transfer_chunk_write(uint64_t offset, const struct facts *facts, const void *state,
                          size_t bytes, uint8_t head[TRANSFER_HEAD_BYTES])
{
    const struct optim_plateau *p = &facts->plateau;

    memset(head, 0, TRANSFER_HEAD_BYTES);
    memcpy(head, magic, sizeof(magic));
    bytes_set_u32(head + AT_VERSION, TRANSFER_CHUNK_VERSION);
    bytes_set_u64(head + AT_OFFSET, offset);
    bytes_set_u64(head + AT_BYTES, bytes);
    bytes_set_u64(head + AT_STEP, facts->step);
    bytes_set_u64(head + AT_EVALUATED_STEP, facts->evaluated_step);
    bytes_set_f64(head + AT_LOSS, facts->loss);
    bytes_set_f64(head + AT_GRAD_NORM, facts->grad_norm);
    bytes_set_u32(head + AT_SKIPS_IN_ROW, facts->skips_in_row);
    bytes_set_u32(head + AT_SCALE_GOOD, facts->scale.good);
    bytes_set_f64(head + AT_SCALE, facts->scale.scale);
    bytes_set_u64(head + AT_PLATEAU_STEP, p->step);
    bytes_set_f64(head + AT_PLATEAU_BEST, p->best);
    bytes_set_u32(head + AT_PLATEAU_WAITED, p->waited);
    bytes_set_u32(head + AT_PLATEAU_REDUCTIONS, p->reductions);
    bytes_set_u32(head + AT_PLATEAU_HAS_BEST, p->has_best);
    memcpy(head + AT_GRAD_SCALE, &facts->grad_scale, sizeof(facts->grad_scale));
    bytes_set_f64(head + AT_LEARNING_RATE, facts->learning_rate);
    bytes_set_u32(head + AT_IS_SKIPPED, facts->is_skipped);
    bytes_set_u32(head + AT_CODING, facts->coding);
    bytes_set_u32(head + AT_CRC, checksum(head, state, bytes));
}

static int check_facts(const struct facts *f, uint32_t has_best, uint32_t is_skipped,
                       struct err *err)
{
    if (f->coding >= CODINGS)
        return err_set(err, ERR_PEER, "coding of gradients: %u, expected at most %d",
                       (unsigned)f->coding, CODINGS - 1);
    if (is_skipped > 1)
        return err_set(err, ERR_PEER, "flag of a skipped step: %u, expected 0 or 1", is_skipped);
    if (f->evaluated_step > f->step || f->plateau.step > f->step)
        return err_set(err, ERR_PEER,
                       "last evaluation after step %" PRIu64
                       ", counted by the schedule after step %" PRIu64
                       ", expected at most step %" PRIu64,
                       f->evaluated_step, f->plateau.step, f->step);
    if (f->skips_in_row > HEALTH_MAX_SKIPS)
        return err_set(err, ERR_PEER, "%u skipped steps in a row, expected at most %d",
                       f->skips_in_row, HEALTH_MAX_SKIPS);
    if (!isfinite(f->scale.scale) || f->scale.scale <= 0)
        return err_set(err, ERR_PEER, "loss scale %g, expected a finite number above 0",
                       f->scale.scale);
    if (!isfinite(f->plateau.best) || has_best > 1)
        return err_set(err, ERR_PEER, "best loss %g (flag %u), expected a finite number (0 or 1)",
                       f->plateau.best, has_best);
    return 0;
}

/* The fields that tell what the chunk is. The checksum is right. */
static int check_range(const uint8_t head[TRANSFER_HEAD_BYTES], uint64_t offset, size_t bytes,
                       uint64_t step, struct err *err)
{
    if (bytes_get_u64(head + AT_OFFSET) != offset || bytes_get_u64(head + AT_BYTES) != bytes)
        return err_set(
            err, ERR_PEER,
            "%" PRIu64 " bytes at offset %" PRIu64 ", expected %zu bytes at offset %" PRIu64,
            bytes_get_u64(head + AT_BYTES), bytes_get_u64(head + AT_OFFSET), bytes, offset);
    if (bytes_get_u64(head + AT_STEP) != step)
        return err_set(err, ERR_PEER, "state after step %" PRIu64 ", expected step %" PRIu64,
                       bytes_get_u64(head + AT_STEP), step);
    return 0;
}

int transfer_chunk_read(const uint8_t head[TRANSFER_HEAD_BYTES], uint64_t offset, const void *state,
                        size_t bytes, uint64_t step, struct facts *out, struct err *err)
{
    uint32_t version = bytes_get_u32(head + AT_VERSION), sent = bytes_get_u32(head + AT_CRC), is;
    uint32_t has_best = bytes_get_u32(head + AT_PLATEAU_HAS_BEST);
    uint32_t is_skipped = bytes_get_u32(head + AT_IS_SKIPPED);
    struct facts f = {
        .step = bytes_get_u64(head + AT_STEP),
        .evaluated_step = bytes_get_u64(head + AT_EVALUATED_STEP),
        .loss = bytes_get_f64(head + AT_LOSS),
        .grad_norm = bytes_get_f64(head + AT_GRAD_NORM),
        .skips_in_row = bytes_get_u32(head + AT_SKIPS_IN_ROW),
        .learning_rate = bytes_get_f64(head + AT_LEARNING_RATE),
        .is_skipped = is_skipped == 1,
        .coding = (enum coding)bytes_get_u32(head + AT_CODING),
        .scale = { .scale = bytes_get_f64(head + AT_SCALE),
                   .good = bytes_get_u32(head + AT_SCALE_GOOD) },
        .plateau = { .step = bytes_get_u64(head + AT_PLATEAU_STEP),
                     .has_best = has_best == 1,
                     .best = bytes_get_f64(head + AT_PLATEAU_BEST),
                     .waited = bytes_get_u32(head + AT_PLATEAU_WAITED),
                     .reductions = bytes_get_u32(head + AT_PLATEAU_REDUCTIONS) },
    };
    int rc;

    if (memcmp(head, magic, sizeof(magic)) != 0)
        return err_set(err, ERR_PEER, "it does not begin with the magic \"%.8s\" of a chunk",
                       (const char *)magic);
    if (version != TRANSFER_CHUNK_VERSION)
        return err_set(err, ERR_PEER, "version %u, expected %d; run the same release on every task",
                       version, TRANSFER_CHUNK_VERSION);
    is = checksum(head, state, bytes);
    if (sent != is)
        return err_set(err, ERR_PEER, "checksum 0x%08" PRIx32 ", the sender's is 0x%08" PRIx32, is,
                       sent);
    rc = check_range(head, offset, bytes, step, err);
    memcpy(&f.grad_scale, head + AT_GRAD_SCALE, sizeof(f.grad_scale));
    if (rc == 0)
        rc = check_facts(&f, has_best, is_skipped, err);
    if (rc == 0)
        *out = f;
    return rc;
}
