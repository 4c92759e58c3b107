/* fuzz_top_k.c - any bytes as messages of top_k from a peer: decoding reads the bytes of the message alone and writes every
 * number, and decoded numbers can be coded again. The first two bytes select the length, the third the fraction. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "code/top_k.h"
#include "fuzz/driver.h"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED("\x05\0\x80\0\0\x80\x3f\1\2\3\4"), FUZZ_SEED("\xff\xff\x01\0\0\xc0\x7f\xff\xff\xff"),
                                        FUZZ_SEED("\0\x10\x03\xff\x0f"), FUZZ_SEED("") };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static uint8_t byte_at(const uint8_t *data, size_t size, size_t i)
{
    return i < size ? data[i] : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n =
        1 + (byte_at(data, size, 0) | (size_t)byte_at(data, size, 1) << 8) % (3 * TOP_K_BLOCK);
    double fraction = (1 + byte_at(data, size, 2)) / 256.0;
    size_t bytes = top_k_bytes(fraction, n);
    /* exactly, so that a sanitizer finds a read beyond the end */
    uint8_t *in = calloc(1, bytes);
    float *y = malloc(n * sizeof(*y));

    CHECK(in != NULL && y != NULL);
    for (size_t i = 0, at = 3; size > 3 && i < bytes; i++, at = at + 1 < size ? at + 1 : 3)
        in[i] = data[at]; /* the bytes again and again, so that every block has some */
    memset(y, 0xa5, n * sizeof(*y));
    top_k_decode(fraction, in, n, y);
    top_k_encode(fraction, y, n, in);
    top_k_decode(fraction, in, n, y);
    free(in);
    free(y);
    return 0;
}
