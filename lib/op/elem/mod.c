/* mod.c - Mod: the remainder of a / b. fmod=0, integers: with the sign of b, as in Python. fmod=1:
 * with the sign of a, as C's fmod; float32 needs it.   da = dy, db = -dy trunc(a / b). */
#include "op/elem/divisor.h"
#include "op/elem/elem.h"
#include "op/elem/mod.h"

#include <math.h>
#include <stdlib.h>

#include "base/err.h"

ELEM_FWD(mod_f32, float, fmodf(ELEM_A, ELEM_B))
ELEM_FWD(rest_i32, int32_t, elem_rest_i32(ELEM_A, ELEM_B))
ELEM_FWD(rest_i64, int64_t, elem_rest_i64(ELEM_A, ELEM_B))
ELEM_FWD(rest_u64, uint64_t, elem_rest_u64(ELEM_A, ELEM_B))
ELEM_FWD(modulo_i32, int32_t, elem_modulo_i32(ELEM_A, ELEM_B))
ELEM_FWD(modulo_i64, int64_t, elem_modulo_i64(ELEM_A, ELEM_B))
ELEM_BWD(mod_da, 0, ELEM_D)
ELEM_BWD(mod_db, 1, elem_mod_db(ELEM_D, ELEM_A, ELEM_B))

static const struct elem_kernels like_python = {
    .f32 = mod_f32, .i32 = modulo_i32, .i64 = modulo_i64, .u64 = rest_u64,
    .bwd = { mod_da, mod_db }
};
static const struct elem_kernels like_c = { .f32 = mod_f32, .i32 = rest_i32, .i64 = rest_i64,
                                           .u64 = rest_u64 };

static int mod_infer(struct op_infer *f, struct err *err)
{
    struct mod *m = f->param;
    int rc = op_attr_i(f, "fmod", 0, &m->fmod, err);

    if (rc == 0)
        rc = elem_infer(f, &like_python, err);
    if (rc == 0 && f->out[0].dtype == TENSOR_F32 && m->fmod != 1)
        rc = op_error(f, ERR_INPUT, err, "fmod is %d; float32 needs 1", (int)m->fmod);
    return rc;
}

static int mod_refuse(const struct op_call *c, size_t at, int64_t value, struct err *err)
{
    (void)c;
    (void)value;
    return elem_refuse_divisor("Mod", at, err);
}

static int mod_fwd(const struct op_call *c, struct err *err)
{
    const struct mod *m = c->param;
    int rc = elem_check_divisor(c, "Mod", err);

    return rc < 0 ? rc : elem_fwd(c, m->fmod != 0 ? &like_c : &like_python);
}

static int mod_bwd(const struct op_call *c, struct err *err)
{
    (void)err;
    return elem_bwd(c, &like_python);
}

static const char *const attrs[] = { "fmod", NULL };

const struct op_def op_mod = {
    .name = "Mod",
    .since = 10,
    .n_in = { 2, 2 },
    .n_out = { 1, 1 },
    .attrs = attrs,
    .param_bytes = sizeof(struct mod),
    .infer = mod_infer,
    .diff = OP_IN(0) | OP_IN(1),
    .bwd_reads = OP_IN(0) | OP_IN(1),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .refuse = mod_refuse,
    .cpu = { elem_plan, mod_fwd, mod_bwd, free },
};
