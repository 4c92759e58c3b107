/* code.c - the table of the codes; see code.h. */
#include "code/code.h"

#include "base/check.h"
#include "code/code_priv.h"

static const struct code_def *const codes[CODE_KINDS] = {
    [CODE_BFLOAT16] = &code_bfloat16,
    [CODE_FLOAT16] = &code_float16,
    [CODE_INT8] = &code_int8,
    [CODE_INT4] = &code_int4,
};

static const struct code_def *def_of(enum code_kind kind)
{
    CHECK((size_t)kind < COUNT_OF(codes) && codes[kind] != NULL);
    return codes[kind];
}

const char *code_name(enum code_kind kind)
{
    if (code_keeps_residuals(kind))
        return kind == CODE_TOP_K ? "top_k" : "power_sgd";
    return def_of(kind)->name;
}

size_t code_block_bytes(enum code_kind kind)
{
    CHECK(def_of(kind)->block_bytes >= CODE_LEAST_BYTES);
    return def_of(kind)->block_bytes;
}

void code_encode(enum code_kind kind, const struct code_key *key, uint64_t element, const float *x,
                 size_t n, uint8_t *out)
{
    def_of(kind)->encode(key, element, x, n, out);
}

void code_decode(enum code_kind kind, const uint8_t *in, size_t n, float *y)
{
    def_of(kind)->decode(in, n, y);
}
