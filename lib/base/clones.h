/* clones.h - CLONES in front of a function compiles its loops for several instruction sets and picks
 * one when the program is loaded. The bits do not depend on which: -ffp-contract=off forbids fusing
 * multiply and add, and a reduction spells out its partial sums.
 *
 * clang 14 and sanitizers do not get along with the loader's choice: one version there. */
#ifndef BASE_CLONES_H
#define BASE_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define CLONES
#endif

#endif
