/* fuzz_index.c - any bytes as the index of a set of safetensors files. An accepted index names a
 * file for every tensor. */
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/weights.h"
#include "fuzz/driver.h"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("{\"metadata\":{\"total_size\":16},\"weight_map\":{\"a\":\"m-1.safetensors\","
              "\"b.c\":\"m-2.safetensors\",\"d\":\"m-1.safetensors\"}}"),
    FUZZ_SEED("{\"weight_map\":{\"a\":\"../x\",\"\\u0000\":\"/etc/passwd\"}}"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_index index;
    struct err err = { 0 };
    uint64_t file;

    if (ckpt_index_parse("index", (const char *)data, size, &index, &err) < 0) {
        CHECK(err.text[0] != '\0');
    } else {
        CHECK(index.n_files > 0 && index.n_files <= index.n_tensors);
        CHECK(index.n_files <= CKPT_WEIGHTS_FILES_MAX);
        CHECK(index.file_of.n == index.n_tensors);
        for (uint32_t i = 0; i < index.n_files; i++)
            CHECK(index.files[i][0] != '\0');
        if (map_get(&index.file_of, "a", &file))
            CHECK(file < index.n_files);
    }
    ckpt_index_fini(&index);
    return 0;
}
