/* clones.h - CLONES in front of a function with hot loops compiles it for several instruction sets, each
 * vectorised; the loader picks one. Element-wise loops give the same bits in each, since
 * -ffp-contract=off forbids fusing a multiplication with an addition (op/op.h has the reasons); a
 * reduction spells out its partial sums.
 *
 * gcc at -O2 gives up on loops with a tail, so O3 is asked for; and it believes that somebody traps
 * floating point exceptions, which would keep it from turning ?: into a blend. clang 14 vectorises
 * by itself but gives the choosers of two static functions of one name the same symbol, and under
 * a sanitizer they run too early: one version there. */
#ifndef BASE_CLONES_H
#define BASE_CLONES_H

#if defined(__clang__)
#define CLONES
#elif defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES                                                                                     \
    __attribute__((target_clones("default", "avx2", "arch=x86-64-v4"),                             \
                   optimize("O3", "no-trapping-math")))
#else
#define CLONES __attribute__((optimize("O3", "no-trapping-math")))
#endif

#endif
