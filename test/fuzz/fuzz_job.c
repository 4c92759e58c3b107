/* fuzz_job.c - any bytes as a job file: it is refused with a position, or it is read, printed, and
 * read again as the same job. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/err.h"
#include "conf/job.h"
#include "conf/job_print.h"
#include "fuzz/driver.h"

#define MODEL                                                                                      \
    "\"model\":{\"onnx\":\"a.onnx\",\"inputs\":{\"i\":\"x\",\"j\":\"y\"},\"loss\":{\"type\":"      \
    "\"softmax_cross_entropy\",\"logits\":\"z\",\"labels\":\"l\"},\"metrics\":[\"accuracy\"],"     \
    "\"frozen\":[\"w.*\"]}"
#define DATA                                                                                       \
    "\"data\":{\"train\":\"t-*\",\"eval\":\"../e\",\"features\":{\"i\":{\"dtype\":\"uint8\","      \
    "\"shape\":[1,8,8],\"scale\":0.0625},\"j\":{\"dtype\":\"float32\",\"shape\":[3],"              \
    "\"offset\":-1},\"l\":{\"dtype\":\"int64\",\"shape\":[]}},\"cache\":\"memory\"}"
#define TRAIN                                                                                      \
    "\"train\":{\"seed\":18446744073709551615,\"epochs\":3,\"global_batch_size\":64,\"lanes\":4,"  \
    "\"clip_norm\":1.5,\"deadline_seconds\":30}"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("{" MODEL "," DATA "," TRAIN ",\"optimizer\":{\"type\":\"momentum\","
              "\"learning_rate\":0.1,\"momentum\":0.9,\"schedule\":{\"type\":\"step\","
              "\"step_size\":10,\"gamma\":0.5},\"scaling\":{\"rule\":\"linear\","
              "\"reference_batch_size\":32}},\"checkpoint\":{\"directory\":\"/c//d/./e\","
              "\"every_steps\":5},\"summary\":{\"directory\":null},\"export\":{\"onnx\":\"o\"}}"),
    FUZZ_SEED("{" MODEL "," DATA ",\"train\":{\"steps\":100,\"batch_size_per_replica\":8,\"lane_tree\":[2,3]},"
              "\"optimizer\":{\"type\":\"adamw\",\"learning_rate\":1e-3,\"beta1\":0.8,"
              "\"epsilon\":1e-7,\"schedule\":{\"type\":\"cosine\",\"warmup_steps\":10,"
              "\"final_fraction\":0.1}},\"communication\":{\"implementation\":\"nccl\","
              "\"shared_memory\":false,\"token_file\":\"t\"}}"),
    FUZZ_SEED("{" MODEL "," DATA ",\"train\":{\"steps\":100,\"global_batch_size\":8,\"lanes\":4,\"phases\":["
              "{\"mode\":\"sync\",\"until_step\":20},{\"mode\":\"local_sgd\",\"groups\":2,\"until_step\":40,"
              "\"sync_every\":{\"rule\":\"quadratic\",\"base\":4,\"alpha\":0.0175},\"outer\":"
              "{\"type\":\"nesterov\",\"learning_rate\":0.7,\"momentum\":0.9},\"inner_slots\":\"reset\"},"
              "{\"mode\":\"local_sgd\",\"groups\":4,\"sync_every\":5}]},"
              "\"optimizer\":{\"type\":\"adam\",\"learning_rate\":0.1}}"),
    FUZZ_SEED("{\"name\":\"\\u00e9\",\"train\":{\"steps\":1,\"epochs\":1}}"),
    FUZZ_SEED("{\"modle\":{}}"),
    FUZZ_SEED("[]"),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct conf *first = NULL, *second = NULL;
    struct buf text = { 0 };
    struct err err = { 0 };
    int rc = conf_parse("dir/fuzz.json", (const char *)data, size, &first, &err);

    if (rc < 0) {
        CHECK(first == NULL && rc == err.code);
        CHECK(rc == ERR_NOMEM || (rc == ERR_INPUT && strncmp(err.text, "dir/fuzz.json:", 14) == 0));
        return 0;
    }
    conf_print(first, &text);
    CHECK(!text.failed);
    rc = conf_parse("/other/printed.json", text.data, text.len, &second, &err);
    if (rc < 0)
        fprintf(stderr, "%s\n%s\n", err.text, text.data);
    CHECK(rc == 0);
    CHECK(strcmp(first->digest, second->digest) == 0);
    conf_free(first);
    conf_free(second);
    buf_fini(&text);
    return 0;
}
