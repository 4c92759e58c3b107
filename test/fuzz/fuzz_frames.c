/* fuzz_frames.c - any bytes as the data of a client at the control port: in one piece and in small
 * pieces they are charged the same cost. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "fuzz/driver.h"
#include "rdzv/frames.h"

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#define SETTINGS "\0\0\0\x04\0\0\0\0\0"
#define HEADERS "\0\0\x06\x01\x04\0\0\0\x01\x83\x86\x84\x41\x01x"
#define RESET "\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(PREFACE SETTINGS), FUZZ_SEED(PREFACE SETTINGS HEADERS RESET) };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frames whole = { 0 }, pieces = { 0 };
    double cost = 0, sum = 0;
    bool is_http2 = frames_read(&whole, data, size, &cost), was = true;
    size_t at, step = size > 0 ? 1 + data[size - 1] % 13U : 1;

    for (at = 0; at < size && was; at += step)
        was = frames_read(&pieces, data + at, size - at < step ? size - at : step, &sum);
    CHECK(was == is_http2);
    if (is_http2) {
        CHECK(fabs(cost - sum) < 1e-3 * (1 + cost));
        CHECK(whole.rest == pieces.rest && whole.n_head == pieces.n_head &&
              whole.n_preface == pieces.n_preface);
    }
    return 0;
}
