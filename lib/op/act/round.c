/* round.c - Floor, Ceil, Round (halves to even).   dx = 0: steps are flat almost everywhere. */
#include "op/act/act.h"

#include <math.h>

ACT_UNARY(floor, floorf(ACT_X), out, ACT_D * 0.0f)
ACT_UNARY(ceil, ceilf(ACT_X), out, ACT_D * 0.0f)
ACT_UNARY(round_11, rintf(ACT_X), out, ACT_D * 0.0f)

ACT_ROW(floor, "Floor", 6, 0)
ACT_ROW(ceil, "Ceil", 6, 0)
ACT_ROW(round_11, "Round", 11, 0)
