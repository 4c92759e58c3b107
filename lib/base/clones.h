/* clones.h - CLONES compiles a function with hot loops for several instruction sets, vectorised;
 * the dynamic loader selects one version.
 *
 * Element-wise loops have bit-identical results in all versions, because -ffp-contract=off forbids
 * fusing a multiplication with an addition (see op/op.h); reductions write out their partial sums.
 *
 * gcc needs O3, because at -O2 it does not vectorise loops with a remainder, and no-trapping-math,
 * because otherwise it assumes that floating-point exceptions trap and does not turn ?: into a
 * blend. Only one version is compiled
 *   - with clang: clang 14 vectorises without the attributes, but the ifunc resolvers of two static
 *     functions of the same name get the same symbol;
 *   - with a sanitizer: the resolvers run before the sanitizer is initialised. */
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

/* A helper that CLONES functions call: it must be a part of each of their versions. */
#define INLINED static inline __attribute__((always_inline))

#endif
