/* fuzz_code.c - any bytes as coded gradients from a peer: decoding reads the bytes of its blocks alone and
 * writes every number, and decoded numbers can be coded again. The first byte selects code and raw blocks. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "code/map.h"
#include "fuzz/driver.h"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED("\x02\0\0\x80\x3f\1\2\3\4\5\6\7\x81\x7f"), FUZZ_SEED("\x13\0\0\xc0\x7f"),
                                        FUZZ_SEED("\0\x80\x7f\xc0\xff"), FUZZ_SEED("\x01\0\0\x80\x7f\xff\xff\xff\x7f") };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

enum { BLOCKS = 5, N = BLOCKS * CODE_BLOCK };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct code_key key = { .seed = 1, .step = 2, .place = 3 };
    enum code_kind kind = (enum code_kind)(CODE_BFLOAT16 + (size > 0 ? data[0] % 4 : 0));
    uint32_t raw = size > 0 ? data[0] / 4 : 0;
    float *y = malloc(N * sizeof(*y));
    struct code_map m;
    uint8_t *in;
    size_t bytes;

    CHECK(y != NULL && code_map_open(&m, kind, N, NULL) == 0);
    for (size_t b = 0; b < BLOCKS; b++)
        if (raw >> b & 1)
            code_map_raw(&m, b * CODE_BLOCK, b * CODE_BLOCK + 1);
    code_map_index(&m);
    bytes = code_map_bytes(&m, 0, N);
    in = calloc(1, bytes); /* exactly, so that a sanitizer finds a read beyond the end */
    CHECK(in != NULL);
    for (size_t i = 0, at = 0; size > 1 && i < bytes; i++, at = (at + 1) % (size - 1))
        in[i] = data[1 + at]; /* the bytes again and again, so that every block has some */
    memset(y, 0xa5, N * sizeof(*y));
    code_map_read(&m, in, 0, N, y);
    code_map_round(&m, &key, y, 0, N, NULL);
    code_map_write(&m, &key, y, 0, N, in);
    free(in);
    free(y);
    code_map_close(&m);
    return 0;
}
