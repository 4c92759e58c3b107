/* fuzz_transfer.c - any bytes as a chunk of the state that another task sends: as they are, and
 * with the checksum that they must have. What is accepted has only possible values, and is the same
 * when it is written again. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "fuzz/driver.h"
#include "train/health_types.h"
#include "train/state.h"
#include "train/transfer_chunk.h"

enum { OFFSET = 64, STEP = 7, STATE_BYTES = 8 };

/* A chunk of 8 bytes at offset 64 of the state after step 7. */
#define BEGIN                                                                                      \
    "trnchunk\x03\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x06\0\0\0\0" \
    "\0\0\0"
#define LOSS "\0\0\0\0\0\0\xe0\x3f\0\0\0\0\0\0\0\xc0"
#define SCALE "\x03\0\0\0\x02\0\0\0\0\0\0\0\0\0\xf0\x40"
#define PLATEAU "\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\xd0\x3f\x02\0\0\0\x01\0\0\0\x01\0\0\0"
#define END "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(BEGIN LOSS SCALE PLATEAU END "thestate"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static void fuzz_read(const uint8_t head[TRANSFER_HEAD_BYTES], const uint8_t state[STATE_BYTES])
{
    uint8_t again[TRANSFER_HEAD_BYTES];
    struct err err = { 0 };
    struct facts f;

    if (transfer_chunk_read(head, OFFSET, state, STATE_BYTES, STEP, &f, &err) < 0) {
        CHECK(err.code == ERR_PEER && err.text[0] != '\0');
        return;
    }
    fuzz_accept();
    CHECK(f.step == STEP && f.evaluated_step <= STEP && f.plateau.step <= STEP);
    CHECK(f.skips_in_row <= HEALTH_MAX_SKIPS && isfinite(f.plateau.best));
    CHECK(isfinite(f.scale.scale) && f.scale.scale > 0);
    transfer_chunk_write(OFFSET, &f, state, STATE_BYTES, again);
    CHECK(memcmp(head, again, sizeof(again)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t all[TRANSFER_HEAD_BYTES + STATE_BYTES] = { 0 };

    memcpy(all, data, size < sizeof(all) ? size : sizeof(all));
    fuzz_read(all, all + TRANSFER_HEAD_BYTES);
    bytes_set_u32(all + 12, 0);
    bytes_set_u32(all + 12, crc32c(0, all, sizeof(all)));
    fuzz_read(all, all + TRANSFER_HEAD_BYTES);
    return 0;
}
