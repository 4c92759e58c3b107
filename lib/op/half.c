#include "op/half.h"

CLONES static void widen(const uint16_t *restrict x, size_t n, float *restrict y)
{
    size_t i;

    for (i = 0; i < n; i++)
        y[i] = float_of_bfloat16(x[i]);
}

void op_widen(const uint16_t *x, size_t n, float *y)
{
    widen(x, n, y);
}

CLONES static void narrow(const float *restrict x, size_t n, uint16_t *restrict y)
{
    size_t i;

    for (i = 0; i < n; i++)
        y[i] = float_to_bfloat16(x[i]);
}

void op_narrow(const float *x, size_t n, uint16_t *y)
{
    narrow(x, n, y);
}

void op_store_tensor(const struct tensor *from, const struct tensor *to, bool add)
{
    size_t n = (size_t)tensor_elements(to), at, m;
    float room[2][OP_CHUNK], *y;

    for (at = 0; at < n; at += m) {
        m = op_chunk(n - at, true);
        y = op_floats_on(to, at, add ? m : 0, room[1]);
        op_store(y, op_floats(from, at, m, room[0]), m, 1.0f, add);
        op_floats_done(to, at, m, y);
    }
}
