#include "op/half.h"

CLONES static void widen(const uint16_t *restrict x, size_t n, float *restrict y)
{
    size_t i;

    for (i = 0; i < n; i++)
        y[i] = op_half_load(x[i]);
}

void op_widen(const uint16_t *x, size_t n, float *y)
{
    widen(x, n, y);
}

CLONES static void narrow(const float *restrict x, size_t n, uint16_t *restrict y)
{
    size_t i;

    for (i = 0; i < n; i++)
        y[i] = op_half_store(x[i]);
}

void op_narrow(const float *x, size_t n, uint16_t *y)
{
    narrow(x, n, y);
}
