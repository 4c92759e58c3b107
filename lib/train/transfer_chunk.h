/* transfer_chunk.h - the head of a chunk: a range of the state that one task sends to tasks whose
 * state is older (transfer.c). Pure: bytes in, facts or an error out. Threads: any.
 *
 * The bytes of the state follow the head. Integers are little-endian, "f64" is IEEE 754 binary64. A
 * change of a byte below must increase TRANSFER_CHUNK_VERSION.
 *
 *   offset  size  type  field
 *        0     8        magic "trnchunk"
 *        8     4  u32   version: TRANSFER_CHUNK_VERSION
 *       12     4  u32   crc: CRC-32C of the head with crc 0, then of the bytes of the state
 *       16     8  u64   offset: of the first byte, in the state
 *       24     8  u64   bytes: of the state in this chunk
 *                       struct facts, the same in each chunk of a transfer:
 *       32     8  u64   step
 *       40     8  u64   evaluated_step, at most step
 *       48     8  f64   loss; any value
 *       56     8  f64   grad_norm; any value
 *       64     4  u32   skips_in_row, at most HEALTH_MAX_SKIPS
 *       68     4  u32   scale.good
 *       72     8  f64   scale.scale; finite, > 0
 *       80     8  u64   plateau.step, at most step
 *       88     8  f64   plateau.best; finite
 *       96     4  u32   plateau.waited
 *      100     4  u32   plateau.reductions
 *      104     4  u32   plateau.has_best; 0 or 1
 *      108     4  f32   grad_scale; any value
 *      112     8  f64   learning_rate; any value
 *      120     4  u32   is_skipped; 0 or 1
 *      124     4  u32   coding: 0 undecided, 1 off, 2 on (enum coding) */
#ifndef TRAIN_TRANSFER_CHUNK_H
#define TRAIN_TRANSFER_CHUNK_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct facts;

enum { TRANSFER_HEAD_BYTES = 128, TRANSFER_CHUNK_VERSION = 3 };

/* Writes the head of the chunk that holds state[0 .. bytes), which lies at `offset` of the state.
 */
void transfer_chunk_write(uint64_t offset, const struct facts *facts, const void *state,
                          size_t bytes, uint8_t head[TRANSFER_HEAD_BYTES]);

/* Validates every field of a head and the checksum of state[0 .. bytes). `offset`, `bytes`, `step`:
 * the expected values. No other process may be able to write to `head` and `state` meanwhile.
 * Errors: ERR_PEER; then *out is unchanged. */
int transfer_chunk_read(const uint8_t head[TRANSFER_HEAD_BYTES], uint64_t offset, const void *state,
                        size_t bytes, uint64_t step, struct facts *out, struct err *err);

#endif
