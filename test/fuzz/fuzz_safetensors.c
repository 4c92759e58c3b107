/* fuzz_safetensors.c - any bytes as a safetensors file. An accepted header must have the properties
 * on which the loader relies. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/safetensors.h"
#include "fuzz/driver.h"

#define JSON "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}," \
             "\"__metadata__\":{\"k\":\"v\"}," \
             "\"b\":{\"dtype\":\"U8\",\"shape\":[1,3],\"data_offsets\":[8,11]}}"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x86\0\0\0\0\0\0\0" JSON "01234567890"),
    FUZZ_SEED("\2\0\0\0\0\0\0\0{}"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

_Static_assert(sizeof(JSON) - 1 == 0x86, "the length in the first seed");

static void try_json(const char *json, size_t n, uint64_t file_bytes)
{
    struct safetensors s;
    struct err err;
    uint64_t at = 0;

    if (safetensors_parse(json, n, file_bytes, &s, &err) < 0) {
        CHECK(err.text[0] != '\0');
        return;
    }
    CHECK(s.data_at <= file_bytes);
    for (size_t i = 0; i < s.n; i++) {
        struct tensor t = { .dtype = s.entries[i].dtype, .shape = s.entries[i].shape };

        CHECK(s.entries[i].begin == at && s.entries[i].end - at == tensor_bytes(&t));
        at = s.entries[i].end;
    }
    CHECK(at == file_bytes - s.data_at);
    safetensors_fini(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t n;
    struct err err;

    if (size < SAFETENSORS_HEAD_BYTES)
        return 0;
    if (safetensors_json_bytes(data, size, &n, &err) == 0) {
        CHECK(n <= size - SAFETENSORS_HEAD_BYTES);
        try_json((const char *)data + SAFETENSORS_HEAD_BYTES, n, size);
    }
    /* Also without the length: all bytes except the last 11 as the JSON, 11 bytes of data as in the
     * seed. */
    n = size - SAFETENSORS_HEAD_BYTES;
    try_json((const char *)data + SAFETENSORS_HEAD_BYTES, n > 11 ? n - 11 : n, size);
    return 0;
}
