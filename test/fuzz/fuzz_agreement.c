/* fuzz_agreement.c - any bytes as the agreement of a generation. What is accepted is the same when it is written again. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "fuzz/driver.h"
#include "train/agree_message.h"

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("agreemnt\x03\0\0\0\x01\0\0\0\x02\x01\0\0\0\0\0\0\xd0\xc0\xb0\xa0\x01\0\0\0" DIGEST DIGEST
              "00112233445566778899aabbccddeeff"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[AGREE_BYTES] = { 0 }, again[AGREE_BYTES];
    struct agreement a;
    struct err err = { 0 };

    memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
    if (agree_message_read(bytes, "chief 0", &a, &err) < 0) {
        CHECK(err.code == ERR_PEER && err.text[0] != '\0');
        return 0;
    }
    fuzz_accept();
    agree_message_write(&a, again);
    CHECK(memcmp(bytes, again, sizeof(again)) == 0);
    return 0;
}
