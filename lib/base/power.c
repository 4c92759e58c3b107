/* power.c - computes powers with additions, multiplications and divisions only, whose rounding is
 * specified by IEEE 754. The relative error of power_real() is about 1e-15 for small exponents. */
#include "base/power.h"

#include <math.h>

#include "base/check.h"

static const double ln2 = 0.693147180559945309417;

double power_int(double x, uint64_t n)
{
    double y = 1;

    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            y *= x;
    return y;
}

/* Returns ln(m) for 0.5 <= m < 1: doubles m if it is below sqrt(1/2), then sums the series
 * 2 artanh(z) = 2 (z + z^3/3 + z^5/5 ...), z = (m-1) / (m+1). */
static double logarithm(double m)
{
    double shift = 0, z, square, term, sum;

    if (m < 0.70710678118654752440) { /* sqrt(1/2) */
        m *= 2;
        shift = -ln2;
    }
    z = (m - 1) / (m + 1); /* |z| < 0.172 */
    square = z * z;
    term = sum = z;
    for (uint32_t n = 3; n < 27; n += 2) { /* the last term is below 1e-20 of the first */
        term *= square;
        sum += term / n;
    }
    return 2 * sum + shift;
}

/* Returns e^r for |r| <= ln(2) / 2. */
static double exponential(double r)
{
    double term = 1, sum = 1;

    for (uint32_t n = 1; n < 18; n++) {
        term *= r / n;
        sum += term;
    }
    return sum;
}

double power_real(double x, double y)
{
    double whole = floor(y), part, r, k;
    int exponent;

    CHECK(x >= 0 && y >= 0);
    if (x == 0)
        return y == 0 ? 1 : 0;
    if (whole > 1e9) { /* schedules need no larger exponents */
        whole = 1e9;
        y = whole;
    }
    part = y - whole;
    r = power_int(x, (uint64_t)whole);
    if (part == 0)
        return r;
    x = frexp(x, &exponent); /* exact */
    y = part * (logarithm(x) + exponent * ln2);
    k = floor(y / ln2 + 0.5);
    return r * ldexp(exponential(y - k * ln2), (int)k);
}
