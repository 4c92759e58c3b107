/* formula.h - FORMULA in front of a function makes it part of CPU loops and of GPU kernels alike.
 *
 * A header *_formula.h holds the formulas of a folder, each for a single element. A C file inlines
 * them into its loops; a .cu file, which nvcc compiles, or g++ for the emulator of test/cuda,
 * inlines them into its kernels. A formula is therefore written in the common subset of C and C++:
 * pointers instead of references, no designated initializers, no overloads. A .cu file includes it
 * after a header of CUDA.
 *
 * A CPU loop vectorises a formula that is straight-line arithmetic: `?:` instead of `if`, and calls
 * of other formulas, fabsf, sqrtf, floorf, ceilf and rintf only. */
#ifndef BASE_FORMULA_H
#define BASE_FORMULA_H

#if defined(__CUDACC__) || defined(CUDA_EMULATED)
#define FORMULA __device__ static __forceinline__
#else
#define FORMULA static inline __attribute__((always_inline))
#endif

#endif
