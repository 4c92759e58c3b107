/* fuzz_onnx.c - the bytes of a model, mutated as bytes; see onnx_target.h. */
#include "fuzz/onnx_target.h"

const struct fuzz_seed fuzz_seeds[] = {
#include "fuzz/onnx_seeds.h"
};
const size_t n_fuzz_seeds = sizeof(fuzz_seeds) / sizeof(fuzz_seeds[0]);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    (void)try_model(data, n);
    return 0;
}
