/* The true cuDNN judges the graphs that our code makes, where no GPU is: from version 9.8 on it makes plans for
 * one of which only the properties are given. What it refuses here it would refuse there, and what a plan
 * says of its scratch is so there. Nothing runs: what is computed, only a GPU shows. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern "C" {
#include <cmocka.h>
}

#include "op/attention/sdpa.cuh"
#include "op/conv/pass.cuh"
#include "op/cudnn/graph.cuh"

/* An H200: what cudaDeviceGetAttribute() says of it, under the names that cuDNN 9.19 wants, all of which it
 * needs. */
static const char h200[] =
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 132, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
    "\"maxSharedMemoryPerBlockOptin\": 232448, \"reservedSharedMemoryPerBlock\": 1024, "
    "\"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, "
    "\"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000, \"l2CacheSize\": 62914560, "
    "\"deviceName\": \"NVIDIA H200\", \"deviceVer\": 900, \"driverVer\": 13000, \"cudaDeviceId\": 0, "
    "\"totalGlobalMem\": 150754820096}";

static int pretend(void **state)
{
    struct err err = {};

    (void)state;
    if (cudnnGetVersion() >= 90800 && cudnn_mock_device(h200, &err) < 0) {
        fprintf(stderr, "ERROR: %s\n", err.text);
        return -1;
    }
    return 0;
}

static void need_version(void)
{
    if (cudnnGetVersion() < 90800) {
        fprintf(stderr, "cuDNN %zu: plans without a GPU came with 9.8\n", cudnnGetVersion());
        skip();
    }
}

/* ---- convolutions ---- */

struct layer {
    int64_t n, c, o, group;
    uint32_t axes;
    int64_t in, kernel, stride, dilation, lo, hi;
};

static const enum tensor_dtype halves[] = { TENSOR_BF16, TENSOR_F16 }, floats[] = { TENSOR_BF16, TENSOR_F16,
                                                                                   TENSOR_F32 };

/* Opens the three passes of a layer, as conv_cuda.cu does. Returns their scratch. */
static size_t open_layer(const struct layer *l, enum tensor_dtype images)
{
    struct op_window w = { .spatial = l->axes };
    size_t bytes = 0;

    for (uint32_t k = 0; k < l->axes; k++) {
        w.in[k] = l->in;
        w.kernel[k] = l->kernel;
        w.stride[k] = l->stride;
        w.dilation[k] = l->dilation;
        w.pad_lo[k] = l->lo;
        w.pad_hi[k] = l->hi;
        w.out[k] = (l->in + l->lo + l->hi - (l->kernel - 1) * l->dilation - 1) / l->stride + 1;
    }
    for (int k = 0; k < CONV_OPERANDS; k++) {
        struct conv_pass_spec spec = { .computed = (enum conv_operand)k, .images = images, .n = l->n, .c = l->c,
                                       .o = l->o, .group = l->group, .window = &w, .may_add = k != CONV_Y };
        struct conv_pass *p = NULL;
        struct err err = {};

        if (conv_pass_open(&spec, &p, &err) < 0)
            fail_msg("%s", err.text);
        bytes += conv_pass_scratch_bytes(p);
        conv_pass_close(p);
    }
    return bytes;
}

static void every_convolution_of_resnet_50_has_an_engine(void **state)
{
    static const struct layer layers[] = {
        { 256, 3, 64, 1, 2, 224, 7, 2, 1, 3, 3 },      { 256, 64, 64, 1, 2, 56, 1, 1, 1, 0, 0 },
        { 256, 64, 64, 1, 2, 56, 3, 1, 1, 1, 1 },      { 256, 64, 256, 1, 2, 56, 1, 1, 1, 0, 0 },
        { 256, 256, 64, 1, 2, 56, 1, 1, 1, 0, 0 },     { 256, 256, 128, 1, 2, 56, 1, 1, 1, 0, 0 },
        { 256, 128, 128, 1, 2, 56, 3, 2, 1, 1, 1 },    { 256, 128, 512, 1, 2, 28, 1, 1, 1, 0, 0 },
        { 256, 256, 512, 1, 2, 56, 1, 2, 1, 0, 0 },    { 256, 512, 128, 1, 2, 28, 1, 1, 1, 0, 0 },
        { 256, 128, 128, 1, 2, 28, 3, 1, 1, 1, 1 },    { 256, 512, 256, 1, 2, 28, 1, 1, 1, 0, 0 },
        { 256, 256, 256, 1, 2, 28, 3, 2, 1, 1, 1 },    { 256, 256, 1024, 1, 2, 14, 1, 1, 1, 0, 0 },
        { 256, 512, 1024, 1, 2, 28, 1, 2, 1, 0, 0 },   { 256, 1024, 256, 1, 2, 14, 1, 1, 1, 0, 0 },
        { 256, 256, 256, 1, 2, 14, 3, 1, 1, 1, 1 },    { 256, 1024, 512, 1, 2, 14, 1, 1, 1, 0, 0 },
        { 256, 512, 512, 1, 2, 14, 3, 2, 1, 1, 1 },    { 256, 512, 2048, 1, 2, 7, 1, 1, 1, 0, 0 },
        { 256, 1024, 2048, 1, 2, 14, 1, 2, 1, 0, 0 },  { 256, 2048, 512, 1, 2, 7, 1, 1, 1, 0, 0 },
        { 256, 512, 512, 1, 2, 7, 3, 1, 1, 1, 1 },
    };

    (void)state;
    need_version();
    for (enum tensor_dtype images : floats)
        for (const struct layer &l : layers)
            open_layer(&l, images);
}

static void odd_convolutions_have_engines(void **state)
{
    static const struct layer layers[] = {
        { 1, 1, 1, 1, 2, 1, 1, 1, 1, 0, 0 },     { 3, 5, 7, 1, 2, 13, 3, 2, 1, 1, 1 },
        { 2, 3, 4, 1, 2, 9, 2, 1, 1, 0, 1 }, /* pads that differ */
        { 2, 6, 9, 3, 2, 8, 3, 1, 1, 1, 1 },     { 4, 32, 32, 32, 2, 28, 3, 1, 1, 1, 1 }, /* depthwise */
        { 2, 16, 24, 1, 2, 17, 3, 1, 3, 3, 3 },  { 5, 8, 16, 1, 1, 33, 5, 2, 1, 2, 2 },   /* dilated; 1 axis */
        { 2, 4, 6, 1, 3, 7, 3, 1, 1, 1, 1 },     { 1, 16, 8, 1, 3, 9, 3, 2, 1, 0, 0 },
        { 2, 128, 256, 1, 2, 5, 5, 1, 1, 0, 0 },
    };

    (void)state;
    need_version();
    for (const struct layer &l : layers) /* some engines compile kernels: half a second each */
        open_layer(&l, &l - layers < 3 ? TENSOR_F32 : TENSOR_BF16);
}

/* ---- attention ---- */

/* heads_apart: [b, h, t, d]; else [b, t, h, d]. */
static struct sdpa_spec attention(int64_t batch, int64_t heads, int64_t t, int64_t s, int64_t d,
                                  bool heads_apart)
{
    struct sdpa_spec spec = { .type = TENSOR_BF16, .batch = batch, .heads = heads, .t = t, .s = s, .d = d, .dv = d,
                              .scale = 0.125f };

    for (int k = SDPA_Q; k <= SDPA_Y; k++) {
        const int64_t rows = k == SDPA_K || k == SDPA_V ? s : t;

        spec.at[k].batch = heads * rows * d;
        spec.at[k].head = heads_apart ? rows * d : d;
        spec.at[k].row = heads_apart ? d : heads * d;
    }
    return spec;
}

static size_t open_attention(struct sdpa_spec spec, bool backward)
{
    struct sdpa *a = NULL;
    struct err err = {};
    size_t bytes;

    spec.backward = backward;
    assert_true(sdpa_fits(&spec));
    if (sdpa_open(&spec, &a, &err) < 0)
        fail_msg("%s", err.text);
    bytes = sdpa_scratch_bytes(a);
    sdpa_close(a);
    return bytes;
}

static void causal_attention_has_engines_and_no_matrix_of_scores(void **state)
{
    struct sdpa_spec spec = attention(32, 12, 1024, 1024, 64, false); /* GPT-2 */

    (void)state;
    need_version();
    spec.is_causal = true;
    assert_true(open_attention(spec, false) <= 1 << 20);
    /* backward: the slopes of a part as 16-bit numbers, and a float32 a row */
    assert_true(open_attention(spec, true) <= ((size_t)256 << 20) + 32 * 12 * 1024 * 4 + (1 << 20));
    for (int k = SDPA_Q; k < SDPA_Y; k++) { /* q, k and v side by side, as one product leaves them */
        spec.at[k].batch *= 3;
        spec.at[k].row *= 3;
    }
    assert_true(open_attention(spec, false) <= 1 << 20);
    assert_true(open_attention(spec, true) <= ((size_t)256 << 20) + 32 * 12 * 1024 * 4 + (1 << 20));
    spec = attention(1, 2, 16384, 16384, 128, true);
    spec.type = TENSOR_F16;
    spec.is_causal = true;
    assert_true(open_attention(spec, true) <= ((size_t)512 << 20) + 2 * 16384 * 4 + (1 << 20));
}

static void biased_attention_has_engines(void **state)
{
    struct sdpa_spec spec = attention(4, 3, 333, 777, 72, true);

    (void)state;
    need_version();
    spec.has_bias = true;
    spec.at[SDPA_BIAS].batch = 777; /* [b, 1, 1, s] */
    (void)open_attention(spec, false);
    spec.at[SDPA_BIAS].batch = 0; /* [1, 1, t, s] */
    spec.at[SDPA_BIAS].row = 777;
    (void)open_attention(spec, true);
    spec = attention(1, 4, 200, 200, 256, false);
    spec.has_bias = true;
    spec.is_causal = true;
    spec.at[SDPA_BIAS].batch = 4 * 200 * 200; /* [b, h, t, s] */
    spec.at[SDPA_BIAS].head = 200 * 200;
    spec.at[SDPA_BIAS].row = 200;
    (void)open_attention(spec, true);
}

static void what_no_engine_knows_is_refused(void **state)
{
    struct sdpa_spec spec = attention(1, 1, 128, 128, 512, true);
    struct sdpa *a = NULL;
    struct err err = {};

    (void)state;
    need_version();
    spec.backward = true;
    assert_int_equal(sdpa_open(&spec, &a, &err), ERR_UNSUPPORTED);
    assert_null(a);
    if (strstr(err.text, "attention backward, bfloat16, 1 of 1 samples") == NULL)
        fail_msg("%s", err.text);
    for (enum tensor_dtype type : halves) {
        spec = attention(1, 1, 128, 128, 20, true);
        spec.type = type;
        assert_false(sdpa_fits(&spec));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_convolution_of_resnet_50_has_an_engine),
        cmocka_unit_test(odd_convolutions_have_engines),
        cmocka_unit_test(causal_attention_has_engines_and_no_matrix_of_scores),
        cmocka_unit_test(biased_attention_has_engines),
        cmocka_unit_test(what_no_engine_knows_is_refused),
    };

    return cmocka_run_group_tests(tests, pretend, NULL);
}
