/* fuzz_manifest.c - any bytes as a checkpoint's manifest, unchanged and with a correct checksum, to
 * reach the code after its check. */
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "ckpt/ckpt_priv.h"
#include "fuzz/driver.h"

#define BODY                                                                                       \
    "{\n  \"format\": 1,\n  \"step\": 3,\n  \"epoch\": 0,\n  \"position\": 192,\n"                 \
    "  \"seed\": 18446744073709551614,\n  \"lanes\": 4,\n  \"global_batch_size\": 64,\n"           \
    "  \"job_digest\": \"ab\",\n  \"model_digest\": \"cd\",\n  \"data_digest\": \"ef\",\n"         \
    "  \"name\": \"x\",\n  \"complete\": false,\n  \"written_at\": \"2026-01-31T12:00:00Z\",\n"    \
    "  \"files\": {\n"                                                                             \
    "    \"model.safetensors\": {\"bytes\": 8, \"xxh3_128\": "                                     \
    "\"0123456789abcdef0123456789abcdef\"},\n"                                                     \
    "    \"optimizer.safetensors\": {\"bytes\": 8, \"xxh3_128\": "                                 \
    "\"0123456789abcdef0123456789abcdef\"}\n  },\n"

#define PLATEAU                                                                                    \
    "  \"plateau_step\": 40,\n  \"plateau_has_best\": true,\n  \"plateau_best\": 0.125,\n"           \
    "  \"plateau_waited\": 2,\n  \"plateau_reductions\": 1,\n"

#define PHASE "  \"phase\": 2,\n  \"groups\": 4,\n  \"outer_step\": 7,\n" \
              "  \"has_outer_momentum\": true,\n  \"staleness\": 3,\n  \"residual_groups\": 4,\n"

#define FILE_ENTRY(name_)                                                                          \
    "    \"" name_ "\": {\"bytes\": 8, \"xxh3_128\": \"0123456789abcdef0123456789abcdef\"},\n"
#define SHARD_FILES(kind_, tens_)                                                                  \
    FILE_ENTRY(kind_ "-000" tens_ "0-of-00016.safetensors")                                        \
    FILE_ENTRY(kind_ "-000" tens_ "1-of-00016.safetensors")                                        \
    FILE_ENTRY(kind_ "-000" tens_ "2-of-00016.safetensors")                                        \
    FILE_ENTRY(kind_ "-000" tens_ "3-of-00016.safetensors")                                        \
    FILE_ENTRY(kind_ "-000" tens_ "4-of-00016.safetensors")                                        \
    FILE_ENTRY(kind_ "-000" tens_ "5-of-00016.safetensors")
#define SHARDED                                                                                    \
    "{\n  \"format\": 2,\n  \"step\": 3,\n  \"epoch\": 0,\n  \"position\": 192,\n  \"seed\": 1,\n"  \
    "  \"lanes\": 4,\n  \"global_batch_size\": 64,\n  \"job_digest\": \"ab\",\n"                     \
    "  \"data_digest\": \"ef\",\n  \"name\": \"x\",\n  \"complete\": false,\n"                       \
    "  \"shards\": {\"files\": 16, \"rows\": \"" CKPT_ROWS_RULE "\"},\n  \"files\": {\n"                \
    SHARD_FILES("model", "0")                                                                      \
    FILE_ENTRY("model-00006-of-00016.safetensors") FILE_ENTRY("model-00007-of-00016.safetensors")  \
    FILE_ENTRY("model-00008-of-00016.safetensors") FILE_ENTRY("model-00009-of-00016.safetensors")  \
    SHARD_FILES("model", "1")                                                                      \
    FILE_ENTRY("model-dense.safetensors") FILE_ENTRY("model.safetensors.index.json")               \
    "    \"optimizer-dense.safetensors\": {\"bytes\": 8, \"xxh3_128\": "                           \
    "\"0123456789abcdef0123456789abcdef\"}\n  },\n"

const struct fuzz_seed fuzz_seeds[] = { FUZZ_SEED(BODY), FUZZ_SEED(SHARDED), FUZZ_SEED(BODY PLATEAU),
                                        FUZZ_SEED(BODY PHASE),
                                        FUZZ_SEED("{}") };
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static bool try_text(const char *text, size_t n)
{
    static struct ckpt_manifest m; /* static, because it is large */
    struct err err;

    if (ckpt_manifest_parse(text, n, &m, &err) < 0) {
        CHECK(err.text[0] != '\0');
        return false;
    }
    for (int kind = 0; kind < CKPT_SHARD_KINDS; kind++)
        CHECK(ckpt_manifest_file(&m, ckpt_dense_file(&m, kind)) != NULL);
    for (uint32_t f = 0; m.has_shards && f < CKPT_SHARD_FILES; f++) {
        char name[CKPT_FILE_NAME_BYTES];

        ckpt_shard_file_name(CKPT_SHARD_MODEL, f, name);
        CHECK(ckpt_manifest_file(&m, name) != NULL);
    }
    for (uint32_t i = 0; i < m.n_files; i++)
        CHECK(strchr(m.files[i].name, '/') == NULL && m.files[i].name[0] != '.');
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ckpt_manifest again = { .n_files = 0 };
    struct buf text = { 0 };
    char hash[CKPT_HASH_BYTES];

    (void)try_text((const char *)data, size); /* any result is allowed */
    buf_add(&text, data, size);
    ckpt_hash_print(XXH3_128bits(text.data, text.len), hash);
    buf_printf(&text, "  \"checksum\": \"%s\"\n}\n", hash);
    CHECK(!text.failed);
    if (try_text(text.data, text.len)) { /* an accepted manifest can be printed and read again */
        CHECK(ckpt_manifest_parse(text.data, text.len, &again, NULL) == 0);
        buf_reset(&text);
        ckpt_manifest_print(&again, 0, &text);
        CHECK(!text.failed && try_text(text.data, text.len));
    }
    buf_fini(&text);
    return 0;
}
